"""What can be said of a tree in words.

From the bottom up: `key_paths` writes a place as a person does, and `key_order` finds
the dicts that jax cannot flatten. `printer` lays out a tree, behind `repr`, which
imports it when something is printed, and `diff` lists how two trees differ.
"""
