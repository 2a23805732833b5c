"""Strategies: values for fields and arguments, drawn by hypothesis.

From the bottom up: `registered` has what users said of their own types, `arrays` draws
arrays and keys, `scope` is what the values of one instance share, `construct` makes one
instance, `annotations` says what a field may hold, `axes` which axes they name,
`states` is what hypothesis takes, and `classes` draws State classes.
"""
