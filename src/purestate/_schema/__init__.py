"""What a class declares, and what is computed from it once.

From the bottom up: `marks` tell a State class, and what an instance is at the moment;
`leaves` says what a leaf is, `tracers` finds tracers in any object. `fields` has the
specifiers, `annotations` says which of them ask for an array, `dimensions` of which
shape, and `class_body` reads a body into fields. `static_values` says when two static
values are the same, `aux_data` keeps one object for each set of them, and `layout` is
the record of a class: all that everyone else asks of it. A `view` is a name for a part
of a field; `text` is how messages name States and functions.
"""
