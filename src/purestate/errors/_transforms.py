"""Mistakes in places, parts, drafts, batches and transformed functions."""

from collections.abc import Iterable

from purestate.errors._base import PurestateError, PurestateWarning
from purestate.errors._text import nearest, short


class BatchAxisError(PurestateError, ValueError):
    """`ps.vmap` over leaves without the axis, or of different sizes."""

    def __init__(self, function: str, sizes: Iterable[tuple[str, object]]) -> None:
        listed = "\n".join(f"  {place}: {size}" for place, size in sizes)
        super().__init__(
            f"vmap of {function} needs one size along the mapped axes, and got\n"
            f"{listed}\n"
            f"Map only some fields with in_axes=(ps.prefix(state, field=0), ...), or "
            f"give every leaf the batch axis, as ps.stack does."
        )


class CombineError(PurestateError, ValueError):
    """`ps.combine` of parts that are not parts of one tree."""

    def __init__(self, differences: Iterable[str]) -> None:
        listed = "\n".join(differences)
        super().__init__(
            f"combine() got parts of different trees, they differ at\n{listed}\n"
            f"Give trees of one structure, as ps.partition returns them; their leaves "
            f"may be changed."
        )


class ConsumedStateError(PurestateError, RuntimeError):
    """A State was used after it was donated."""

    def __init__(
        self, cls: type, donated: type, function: str, failure: str = ""
    ) -> None:
        whole = "" if cls is donated else f" as part of a {donated.__name__}"
        if failure:
            super().__init__(
                f"this {cls.__name__} was donated to {function}(){whole}, in a call "
                f"that failed with {failure} and gave nothing back. To go on after a "
                f"failure, copy it before the call, jax.tree.map(jnp.copy, state), or "
                f"leave out donate."
            )
            return
        super().__init__(
            f"this {cls.__name__} was donated to {function}(){whole}; use the instance "
            f"that it returned. To keep the old one, copy it before the call: "
            f"jax.tree.map(jnp.copy, state)."
        )


class DraftError(PurestateError, RuntimeError):
    """A draft used outside its block, after an exception, or in another trace."""

    @classmethod
    def cycle(cls, owner: type, path: str) -> "DraftError":
        """Return the error for a draft that was assigned into itself."""
        return cls(
            f"{path} is the {owner.__name__} that it stands in: a tree cannot hold "
            f"itself. Assign a copy, copy.copy({owner.__name__.lower()}), or hold an "
            f"index in its place."
        )


class JitDeclarationError(PurestateError, TypeError):
    """A use of `ps.jit` that could never be right."""


class LostUpdateWarning(PurestateWarning):
    """A method that donates its State does not return one."""

    def __init__(self, cls: type, function: str) -> None:
        super().__init__(
            f"{function} donates its {cls.__name__} but returns none: after the call "
            f"its arrays are gone. Return self.replace(...), or drop donate=True."
        )


class NothingToDifferentiateError(PurestateError, TypeError):
    """`ps.grad` of something without floating-point leaves."""

    def __init__(self, name: str, given: str) -> None:
        what = f"{name} has" if name else "the argument has"
        super().__init__(
            f"{what} no floating-point leaf among those to differentiate: {given}. "
            f"Pass floats, or select others with wrt=; integers, booleans and keys "
            f"have no gradient."
        )


class PackError(PurestateError, ValueError):
    """Something that `ps.pack` cannot pack, or a packed State that was cut up."""

    @classmethod
    def given(cls, value: object) -> "PackError":
        """Return the error for something without a State in it."""
        return cls(
            f"ps.pack takes a State or a container of States, and got an object of "
            f"type {type(value).__name__}."
        )

    @classmethod
    def size(cls, max_bytes: object) -> "PackError":
        """Return the error for a limit that is no size."""
        return cls(
            f"max_bytes is the size in bytes up to which leaves are packed, an integer "
            f"from 0 on, and got {short(max_bytes)}."
        )

    @classmethod
    def resized(cls, owner: type, size: int, shape: object) -> "PackError":
        """Return the error for a buffer that is not what it was."""
        return cls(
            f"a buffer of a packed {owner.__name__} holds {size} numbers and came with "
            f"shape {shape}. A vmap, scan or slice over a packed State goes over its "
            f"buffers, not over its leaves: use packed.unpack() there, or vmap inside "
            f"of the function under ps.jit."
        )


class PackedAttributeError(PurestateError, AttributeError):
    """An attribute that a packed State does not have."""

    @classmethod
    def unknown(
        cls, owner: type, name: str, known: Iterable[str]
    ) -> "PackedAttributeError":
        """Return the error for a name that the State does not have either."""
        names = tuple(known)
        hint = nearest(name, names) if names else "use packed.unpack()."
        return cls(f"a packed {owner.__name__} has no attribute {name!r}; {hint}")

    @classmethod
    def plain(cls, owner: type, name: str) -> "PackedAttributeError":
        """Return the error for a method that is not under `ps.jit`."""
        return cls(
            f"{owner.__name__}.{name} is not under ps.jit, and only that knows packed "
            f"States: decorate it with @ps.jit, call it in a function that is, or call "
            f"packed.unpack().{name}(...)."
        )


class PlaceError(PurestateError, LookupError):
    """A selector of `at` that leads to no place, or to overlapping ones."""


class RetraceWarning(PurestateWarning):
    """A jitted function keeps being traced again."""

    def __init__(self, function: str, count: int, changes: str) -> None:
        super().__init__(
            f"{function} is being traced for the {count}th time; since the last time:\n"
            f"{changes}\n"
            f"Each trace compiles anew. Keep types fixed, and make what changes at "
            f"every call a data field instead of a static one."
        )


class InPlaceWarning(PurestateWarning):
    """A jitted function changed a container of its State in place, and in vain."""

    def __init__(self, cls: type, function: str) -> None:
        super().__init__(
            f"{function} changes a dict, list or array inside its {cls.__name__} in "
            f"place. Under jit that is a copy, so the caller's {cls.__name__} does not "
            f"see it. Return an updated one: self.replace(field={{**self.field, ...}})."
        )


class SharedBufferWarning(PurestateWarning):
    """Donated arguments share a buffer, which was copied."""

    def __init__(self, function: str, shared: Iterable[str]) -> None:
        super().__init__(
            f"{function} was given one buffer twice, in {'; '.join(shared)}. A buffer "
            f"can be donated once only, so the second was copied, at this call. Copy "
            f"where the State is made, with jax.tree.map(jnp.copy, ...)."
        )


class StackError(PurestateError, ValueError):
    """States that cannot be stacked, or a State that cannot be taken apart."""


class StateDriftWarning(PurestateWarning):
    """A State came back from a jitted function as another type or structure."""

    def __init__(
        self, cls: type, function: str, changes: str, *, packed: bool = False
    ) -> None:
        fate = "It comes back unpacked. " if packed else ""
        super().__init__(
            f"{function} returns its {cls.__name__} changed:\n{changes}\n"
            f"{fate}The next call will be traced again, and scan would refuse it. Cast "
            f"or reshape inside {function}, or start from the type that it returns."
        )


class WhereError(PurestateError, ValueError):
    """`ps.where` between trees that differ in more than numbers, or by a wrong flag."""

    @classmethod
    def different(cls, name: str, differences: str) -> "WhereError":
        """Return the error for trees of which one cannot take the other's place."""
        return cls(
            f"where() cannot choose between two {name}s that differ in\n{differences}\n"
            f"Only the numbers may differ. Cast or reshape one of them, or give both "
            f"the same static values."
        )

    @classmethod
    def of_shape(cls, flag: tuple[int, ...], place: str, shape: object) -> "WhereError":
        """Return the error for a flag whose axes are not the first of a leaf."""
        return cls(
            f"where() got a flag of shape {flag}, and {place} has shape {shape}: the "
            f"flag's shape must begin that of every leaf. Choose single States inside "
            f"jax.vmap, or reduce the flag: jnp.any(flag)."
        )

    @classmethod
    def not_a_flag(cls, flag: object) -> "WhereError":
        """Return the error for a flag that is not an array of numbers."""
        return cls(
            f"where() got {short(flag)} as its flag. Give a bool or a number, or an "
            f"array of them, as to jnp.where: ps.where(done, first, state)."
        )
