"""How a class becomes a State.

From the bottom up: `generated` writes its constructor and the short way through
`replace`, `dataclass` makes it one for the standard library, `cloudpickle` knows of
classes that are made empty and filled later, `class_setup` does all of it in order, and
`state` is the base class that users subclass.
"""
