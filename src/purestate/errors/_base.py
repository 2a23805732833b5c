"""What every error shares, and the search for the name that was meant."""


class PurestateError(Exception):
    """Base of every error that purestate raises."""

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is pickled as class(*args), which would pass the finished text
        # to an __init__ that wants the facts.
        return _restore, (type(self), self.args, self.__dict__)


class PurestateWarning(UserWarning):
    """Base of every warning that purestate gives."""


def _restore(
    cls: type[PurestateError], args: tuple[object, ...], state: dict[str, object]
) -> PurestateError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error
