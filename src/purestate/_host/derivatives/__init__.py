"""Derivatives of a host function, in numpy.

From the bottom up: `derivative` says which one is asked for, `transpose` turns a map
around, `rules` asks the user's own rule, `finite_differences` asks the function, and
`products` chooses between them.
"""
