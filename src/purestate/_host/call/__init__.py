"""Calling a host function on numpy arrays.

From the bottom up: `failures` keeps exceptions across XLA, `traced_calls` counts the
calls that were put into traces, `leaf` says what an array looks like, `workers` owns
threads and scratch objects, `options` checks a declaration, `operation` is one function
at one set of types, `invoke` calls it and checks what comes back, `batch` does so for a
whole batch, and `result_spec` finds out what it returns.
"""
