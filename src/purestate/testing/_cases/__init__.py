"""Cases: one drawn instance or call under test, and what a law may ask of it.

From the bottom up: `fresh` copies what a law may spoil, `donated` is what calls that
donate share, `ways` are the places in a tree, `outside` is where code keeps things
between calls, `call` is a function with arguments, and `state` an instance.
"""
