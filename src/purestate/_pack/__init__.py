"""Packed States: many small leaves as one argument of a jitted function.

From the bottom up: `slots` says where in a buffer each leaf lies, `packed` is what a
user holds, and `pack` makes it, and gives a traced function the State in its place.
"""
