"""Host functions: numpy code as a citizen of jit, vmap, grad and scan.

From the bottom up: `call` calls a function on numpy arrays, alone or over a batch;
`derivatives` makes products with its Jacobian of such calls; `native` makes operations
of XLA of functions that numba compiles; `program` puts a call into a compiled program,
and tells jax's transforms about it; `function` is what a user holds. On top,
`simulators` makes functions of a simulator and of a live environment.
"""
