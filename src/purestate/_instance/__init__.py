"""The life of one instance, from its constructor to its copies.

From the bottom up: `source` compiles functions that name the fields of one class, and
`pytree` registers those by which jax takes instances apart and puts them together. On
the way into a field a Python number becomes an array in `numbers`; `checks` holds the
invariants, `seal` ends a construction, and `construct` is what constructors call.
`containers` walks lists, dicts and dataclasses; `draft` opens a State for assignment
and settles what is open. `replace` and `at` make updated instances, `copies` copies and
pickles them, `equality` compares them; `cached_property` keeps no tracer, and `batches`
makes States of axes, stacks them and takes them apart.
"""
