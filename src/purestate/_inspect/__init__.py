"""What can be said of a tree in words.

From the bottom up: `key_paths` writes a place as a person does, `key_order` finds the
dicts that jax cannot flatten, and `donations` knows who took an array. `printer` lays
out a tree, behind `repr`, which imports it when something is printed, and `diff` lists
how two trees differ. `summary` makes a table of a State,
and `nonfinite` finds the leaves that hold NaN. `explain` says who kept a tracer; which
statement stored it `stores` reads in the source.
"""
