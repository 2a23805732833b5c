"""How the arrays of a State are split over devices, by what its fields declare.

From the bottom up: `specs` goes through a State and gives each leaf the sharding that
its field asks for, `shard` moves an existing State there.
"""
