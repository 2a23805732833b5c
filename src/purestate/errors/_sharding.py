"""Mistakes with shardings."""

from collections.abc import Iterable, Mapping
from typing import Any

from purestate.errors._base import PurestateError
from purestate.errors._text import nearest, short


class ShardingError(PurestateError, ValueError):
    """A sharding that a class, a State or a mesh does not admit."""

    @classmethod
    def not_a_field(
        cls, owner: type, field: str, name: str, data: Iterable[str]
    ) -> "ShardingError":
        """Return the error for a `spec=` that names no other data field."""
        place = f"{owner.__name__}.{field} has spec={name!r}"
        if name == field:
            return cls(f"{place}, which is the field itself: name another one.")
        others = [other for other in data if other != field]
        return cls(f"{place}, which is no data field: {nearest(name, others)}")

    @classmethod
    def circle(cls, owner: type, names: Iterable[str]) -> "ShardingError":
        """Return the error for fields that mirror each other."""
        return cls(
            f"{owner.__name__} has fields that mirror each other, "
            f"{' -> '.join(names)}: give one of them a PartitionSpec."
        )

    @classmethod
    def no_mesh(cls, caller: str, *, is_found: bool) -> "ShardingError":
        """Return the error for a call without a mesh.

        Args:
            caller: the function that was called.
            is_found: whether this version of jax tells which mesh is set.
        """
        if not is_found:
            return cls(
                f"{caller} needs a mesh: give one. This version of JAX does not say "
                f"which one jax.set_mesh has set."
            )
        return cls(
            f"{caller} needs a mesh: give one, or call it within jax.set_mesh(mesh)."
        )

    @classmethod
    def not_a_mesh(cls, caller: str, value: object) -> "ShardingError":
        """Return the error for something else in place of a mesh."""
        return cls(
            f"{caller} takes a mesh, as jax.make_mesh makes it, and got {short(value)}."
        )

    @classmethod
    def abstract_mesh(cls) -> "ShardingError":
        """Return the error for arrays that are to go where no devices are."""
        return cls(
            "ps.shard got an AbstractMesh, which has no devices to move arrays to: "
            "give a mesh, as jax.make_mesh makes it. Inside of jit, and for "
            "ps.shardings, an abstract one will do."
        )

    @classmethod
    def in_shard_map(cls) -> "ShardingError":
        """Return the error for a call inside of `shard_map`."""
        return cls(
            "ps.shard cannot be called inside of shard_map, where each device has its "
            "own part of an array: call it before, or after."
        )

    @staticmethod
    def wrong_rules(rules: object) -> TypeError:
        """Return the error for rules of another type."""
        return TypeError(
            f"rules= takes a dict from names to axes of the mesh, {{'embed': 'data'}}, "
            f"several in a tuple, or None, and got {short(rules)}."
        )

    @staticmethod
    def wrong_batch(batch: object) -> TypeError:
        """Return the error for a `batch=` of another type."""
        return TypeError(
            f"batch= takes the name of an axis, None, or a tuple of them with one for "
            f"each dimension in front, ('data', None), and got {short(batch)}."
        )

    @classmethod
    def packed(cls, caller: str) -> "ShardingError":
        """Return the error for a packed State."""
        return cls(
            f"{caller} got a packed State, in whose buffers leaves of all fields lie: "
            f"unpack it, and pack it again once its arrays are where they should be."
        )

    @classmethod
    def of(cls, problems: Iterable[str]) -> "ShardingError":
        """Return the error that lists everything that does not fit."""
        return cls("\n".join(problems))

    @staticmethod
    def unknown_axis(axis: Any, meant: Any, mesh: Mapping[Any, int]) -> str:
        """Return the line for a name that is no axis of the mesh.

        Args:
            axis: the name, after the rules.
            meant: the name as it was declared.
            mesh: the size of each axis.
        """
        if axis != meant:
            return (
                f"axis {axis!r}, to which rules= map {meant!r}, is no axis of the "
                f"mesh, {dict(mesh)}"
            )
        return (
            f"axis {axis!r} is no axis of the mesh, {dict(mesh)}; "
            f"rules={{{axis!r}: ...}} maps it, None replicates"
        )

    @staticmethod
    def not_divided(dimension: int, size: int, axes: Any, count: int) -> str:
        """Return the line for a dimension that an axis does not divide."""
        return (
            f"dimension {dimension} has size {size}, which {axes!r} (size {count}) "
            f"does not divide"
        )

    @staticmethod
    def too_long(spec: str, names: int, batch: int, shape: tuple[int, ...]) -> str:
        """Return the line for a spec of more dimensions than there are."""
        more = f", and batch= another {batch}" if batch else ""
        plural = "" if names == 1 else "s"
        return (
            f"spec {spec} names {names} dimension{plural}{more}; its shape is {shape}"
        )

    @staticmethod
    def not_a_spec(value: object) -> str:
        """Return the line for a function that returned something else."""
        return f"its spec function returned {short(value)}, which is no PartitionSpec"

    @staticmethod
    def packed_below() -> str:
        """Return the line for a packed State in a field."""
        return (
            "holds a packed State, in whose buffers leaves of all fields lie: unpack "
            "it, and pack it again once its arrays are where they should be"
        )

    @staticmethod
    def not_an_array(leaf: object, error: Exception) -> str:
        """Return the line for a leaf of which jax makes no array."""
        text = f"holds {short(leaf)}, of which JAX makes no array"
        if isinstance(error, OverflowError):
            return f"{text}: {error}"
        return f"{text}. What is no array belongs in a static field, ps.static()"

    @staticmethod
    def abstract() -> str:
        """Return the line for a leaf without numbers."""
        return (
            "is abstract and has no numbers to move. Make it in place: ps.jit(make, "
            "out_shardings=ps.shardings(jax.eval_shape(make), mesh))()"
        )

    @staticmethod
    def deleted() -> str:
        """Return the line for an array whose memory was given away."""
        return "was deleted or donated; use what the function returned that took it"

    @staticmethod
    def unconstrained() -> str:
        """Return the line for a spec that leaves something to the compiler."""
        return (
            "its spec has P.UNCONSTRAINED, which leaves it to the compiler: outside of "
            "jit say an axis, or None"
        )

    @staticmethod
    def unreduced(spec: object) -> str:
        """Return the line for a spec of sums that are not done."""
        return (
            f"spec {spec!r} has axes that are unreduced or reduced, which only values "
            f"inside of a program are: leave them out"
        )

    @staticmethod
    def no_mirror(field: str, name: str) -> str:
        """Return the line for a leaf that repeats none of the field it mirrors."""
        return (
            f"spec={name!r} has no leaf of this path and shape. Say where it goes: "
            f"{field} = ps.field(spec=choose), with a function choose(path, leaf)"
        )

    @staticmethod
    def optimizer(field: str, repeated: Iterable[str], owner: str | None = None) -> str:
        """Return the line for an optimizer that may mirror no field, or several.

        Args:
            field: the one that holds the optimizer.
            repeated: the fields that its moments repeat.
            owner: the class of both, if the optimizer is in a State in that field.
        """
        names = tuple(repeated)
        if not names:
            return (
                f"its moments repeat no other field of the class. Say where they go: "
                f"{field} = ps.field(spec=choose), with a function choose(path, leaf)"
            )
        where = f" of {owner}" if owner else ""
        if len(names) == 1:
            return (
                f"its moments repeat {names[0]}{where}. Say so there: "
                f'{field} = ps.field(spec="{names[0]}")'
            )
        return (
            f"its moments repeat {', '.join(names[:-1])} and {names[-1]}{where} alike. "
            f'Say which one: {field} = ps.field(spec="{names[0]}")'
        )
