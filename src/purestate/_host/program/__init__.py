"""How a host call gets into a program of jax.

With `_compat`, this is the only room that knows parts of jax that may change.
From the bottom up: `wide_numbers` carries 64-bit numbers as words, `effects` has what
jax is told of calls that must run once, `lowering` are the ways into a compiled
program for callbacks, `native` the way for functions of numba, and `primitive` is what
jax's transforms see.
"""
