"""Mistakes with files of States, and files that are not what they should be."""

from collections.abc import Sequence

from purestate.errors._base import PurestateError, PurestateWarning

_SHOWN = 20  # lines of one error


class PersistError(PurestateError):
    """A State that could not be saved, or not loaded."""


class SaveError(PersistError, TypeError):
    """Something that a file cannot hold; nothing was written."""

    @classmethod
    def contents(
        cls, name: str, problems: Sequence[str], *, static: bool
    ) -> "SaveError":
        """Return the error for leaves that are no arrays, numbers or strings."""
        text = f"cannot save {name}:\n{_listed(problems)}\n"
        text += "A file holds arrays, numbers, strings and containers of them."
        if static:
            text += " Declare configuration with ps.static()."
        return cls(text)

    @classmethod
    def too_deep(cls, place: str, limit: int) -> "SaveError":
        """Return the error for a tree that Python could not walk through."""
        return cls(
            f"{place} is nested deeper than {limit}, or holds itself: put it into "
            f"fewer containers."
        )

    @classmethod
    def long(cls, place: str) -> "SaveError":
        """Return the error for an int that Python does not write in decimal."""
        return cls(
            f"{place} is an int of more digits than JSON readers take: give it as a "
            f"text, hex({place}), or hold it in the State."
        )

    @classmethod
    def elsewhere(cls, name: str, places: Sequence[str]) -> "SaveError":
        """Return the error for arrays that lie with other processes."""
        return cls(
            f"{', '.join(places)} of {name} live on devices of other processes, and "
            f"ps.save writes from one. Save with orbax, which writes from all of them: "
            f"ps.to_dict(state) makes what it takes, see docs/saving.md."
        )

    @classmethod
    def address(cls, path: str) -> "SaveError":
        """Return the error for a path that is no path of a file system."""
        return cls(
            f"ps.save writes to a file system, and {path!r} is an address: save there "
            f"with orbax (docs/saving.md), or copy the file after."
        )

    @classmethod
    def irregular(cls, path: str) -> "SaveError":
        """Return the error for a pipe or a device, which a file would replace."""
        return cls(
            f"{path} is no regular file, and ps.save would put one in its place: give "
            f"another path."
        )

    @classmethod
    def extra(cls, place: str, kind: str) -> "SaveError":
        """Return the error for an `extra` that would not come back as it is."""
        return cls(
            f"{place} is of type {kind}, and extra= takes JSON: dicts with keys of "
            f"str, lists, str, int, float, bool and None. Convert it, or hold it in "
            f"the State."
        )


class LoadError(PersistError, ValueError):
    """A file that does not fit what was asked for."""

    @classmethod
    def unfit(
        cls,
        source: str,
        expected: str,
        problems: Sequence[str],
        *,
        needs_instance: bool = False,
    ) -> "LoadError":
        """Return the error that lists all differences."""
        text = f"{source or 'what was saved'} does not fit {expected}:\n"
        text += _listed(problems)
        if needs_instance:
            text += (
                "\nAn instance given as like may be abstract: jax.eval_shape(make), "
                "which computes nothing."
            )
        return cls(text)

    @classmethod
    def too_deep(cls, source: str) -> "LoadError":
        """Return the error for a tree that Python cannot walk through."""
        return cls(
            f"{source or 'what was saved'} is nested deeper than Python goes: "
            f"sys.setrecursionlimit sets how deep that is."
        )

    @classmethod
    def no_manifest(cls, error: Exception) -> "LoadError":
        """Return the error for something that is not a manifest."""
        return cls(
            f"the manifest is not one that ps.to_dict returned "
            f"({type(error).__name__}: {error})"
        )

    @classmethod
    def no_leaves(cls, found: object) -> "LoadError":
        """Return the error for something that is not arrays by name."""
        return cls(
            f"leaves= takes the arrays by name, as ps.to_dict returned them, or a "
            f"function that returns such a mapping; this is of type "
            f"{type(found).__name__}."
        )

    @classmethod
    def foreign(cls, path: str) -> "LoadError":
        """Return the error for a safetensors file of another program."""
        return cls(
            f"{path} was not written by ps.save: it has arrays but no classes. Read it "
            f"with safetensors.numpy.load_file."
        )

    @classmethod
    def newer(cls, path: str, number: object, known: int) -> "LoadError":
        """Return the error for a format of a later version."""
        return cls(
            f"{path} has format {number}, newer than this purestate reads ({known})"
        )

    @classmethod
    def address(cls, path: str) -> "LoadError":
        """Return the error for a path that is no path of a file system."""
        return cls(
            f"ps.load reads from a file system, and {path!r} is an address: copy the "
            f"file first, or load with orbax and ps.from_dict (docs/saving.md)."
        )

    @classmethod
    def irregular(cls, path: str) -> "LoadError":
        """Return the error for a pipe or a device, which has no places to read at."""
        return cls(
            f"{path} is no regular file, and ps.load reads here and there: copy what "
            f"it yields to a file first."
        )

    @classmethod
    def migrated(cls, name: str, result: object) -> "LoadError":
        """Return the error for a `__migrate__` without a result."""
        kind = (
            "None" if result is None else f"an object of type {type(result).__name__}"
        )
        return cls(f"{name}.__migrate__ returned {kind}; return the dict of fields.")


class CorruptFileError(LoadError):
    """A file that is damaged, cut off, or was not written by `ps.save`."""

    @classmethod
    def because(cls, path: str, problem: str) -> "CorruptFileError":
        """Return the error for what is wrong with a file."""
        return cls(f"{path} {problem}")


class LoadWarning(PurestateWarning):
    """A file was loaded, and something in it was not as the class has it."""

    @classmethod
    def lost(cls, source: str, places: Sequence[str]) -> "LoadWarning":
        """Return the warning for a cast that made other numbers."""
        return cls(
            f"{source or 'what was saved'} has numbers in {', '.join(places)} that the "
            f"type expected cannot hold (too large, not finite, with a fraction or an "
            f"imaginary part): allow='cast' made others of them."
        )

    @classmethod
    def vague(cls, source: str, places: Sequence[str]) -> "LoadWarning":
        """Return the warning for static values without a name of their own."""
        return cls(
            f"{source or 'what was saved'} has only names for {', '.join(places)}: a "
            f"lambda, a function made in a function, or an object without a repr. They "
            f"are taken as they are here, and may be others than were saved. A "
            f"function at the top of a module can be told from others."
        )


def _listed(problems: Sequence[str]) -> str:
    lines = [f"  {problem}" for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"  and {len(problems) - _SHOWN} more")
    return "\n".join(lines)
