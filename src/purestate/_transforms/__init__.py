"""jax's transforms, for functions of States.

From the bottom up: `consumed` marks what was donated, `parameters` finds which argument
that is, `watch` compares what a trace was given with what it returned, `notes` explains
errors, and `jit` puts them around `jax.jit`. `donation_report` says what donation
achieved; `grad` and `vmap` stand by themselves.
"""
