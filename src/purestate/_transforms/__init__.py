"""jax's transforms, for functions of States.

From the bottom up: `consumed` marks what was donated, `marking` writes functions that
do so for one structure, `parameters` finds which argument that is, `watch` compares
what a trace was given with what it returned, and `notes` explains errors. `program`
puts them around a call, `stages` around what `lower` and `compile` return, and `jit`
around what `jax.jit` does. `donation_report` says what donation achieved; `grad` and
`vmap` stand by themselves.
"""
