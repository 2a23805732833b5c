"""Functions of numba as operations of XLA: no Python, no lock, no copy of arguments.

The only room that knows XLA's call frame and numba's internals, with a canary test for
each. From the bottom up: `numba_parts` is what is used of numba, `memory` reads and
writes it, `frame` is what XLA hands to an operation, `python` calls Python from there,
`raising` brings exceptions out, `arrays` makes arrays of XLA's memory, `pool` shares a
batch among XLA's threads, `functions` looks at what numba was given, `handler` compiles
an operation, `targets` gives it a name that programs know, `trial` tries one,
`signatures` goes between the types of jax and of numba, `differences` writes
derivatives of the `difference_terms`, and `calls` says what is compiled for a call or a
derivative.
"""
