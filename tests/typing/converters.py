"""`converter=`: the argument has the converter's type, the field its own."""

from typing import assert_type

import purestate as ps


def parsed(value: str | int) -> int:
    return int(value)


class Config(ps.State):
    shape: tuple[int, ...] = ps.static(converter=tuple)
    names: tuple[str, ...] = ps.static(converter=tuple, default=("a",))
    listed: tuple[str, ...] = ps.static(converter=tuple, default_factory=list)
    size: int = ps.static(converter=parsed, default="1")
    scale: float = ps.field(converter=float, default=1)
    extra: frozenset[str] = ps.static(converter=frozenset, kw_only=True, default=())


Config((1, 2))
Config((1, 2), ("b",), (), 2, 0.5, extra=frozenset("a"))
# mypy has no converters in dataclass_transform.
Config([1, 2])  # error[mypy]
Config((1, 2), names=["b"])  # error[mypy]
Config((1, 2), size="2")  # error[mypy]
Config((1, 2), extra={"a"})  # error[mypy]
Config(1)  # error
Config((1, 2), size=b"2")  # error
assert_type(Config((1, 2)).shape, tuple[int, ...])
assert_type(Config((1, 2)).size, int)

Config((1, 2)).replace(shape=(1,))
# As above, for mypy.
Config((1, 2)).replace(shape=[1])  # error[3.13: mypy]
Config((1, 2)).replace(size="2")  # error[3.13: mypy]


class Checked(ps.State):
    # mypy and pyrefly do not compare the converter with the annotation.
    size: int = ps.static(converter=str)  # error[pyright, ty]
