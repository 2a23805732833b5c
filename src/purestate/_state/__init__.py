"""How a class becomes a State.

From the bottom up: `argument_types` says what a constructor takes, `generated` writes
it and the short way through `replace`, `dataclass` makes the class one for the standard
library, `cloudpickle` knows of classes that are made empty and filled later,
`class_setup` does all of it in order, and `state` is the base class that users
subclass.
"""
