"""Functions of numba as operations of XLA: no Python, no lock, no copy of arguments.

The only room that knows XLA's call frame and numba's internals, with a canary test for
each. From the bottom up: `memory` reads and writes it, `frame` is what XLA hands to an
operation, `arrays` makes arrays of it, `raising` brings exceptions out, `pool` shares a
batch among XLA's threads, `functions` looks at what numba was given, `handler` compiles
an operation, `self_test` tries one, and `targets` gives it a name that programs know.
"""
