"""Kinds of values that an environment variable can hold: how its text is read and shown.

Text becomes a value by these rules (engine specification, section 2): a switch is off for "", "0",
"false" and "False" and on for anything else; numbers are read by `int()` and `float()`. Empty text
and paths count as unset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

FALSE = ("", "0", "false", "False")
"""Texts that switch something off; any other text switches it on."""

TokenRange = tuple[int, int]
"""First and last token id of a closed range."""

Value = (
    bool | int | float | str | tuple[str, ...] | tuple[float, ...] | tuple[TokenRange, ...] | None
)

RANGES_FORMAT = (
    'token ids and closed ranges in strictly increasing order, separated by commas: "0..3,7,10..12"'
)


@dataclass(frozen=True)
class Kind:
    """One kind of value.

    name: one word for reports. allowed: the values in words. read: text to value; raises
    ValueError for text that is not allowed.
    """

    name: str
    allowed: str
    read: Callable[[str], Value]


def _number(
    name: str, convert: Callable[[str], float], allowed: str, holds: Callable[[float], bool]
) -> Kind:
    def read(text: str) -> Value:
        value = convert(text)
        if not holds(value):
            raise ValueError(text)
        return value

    return Kind(name, allowed, read)


def integer(minimum: int | None = None, maximum: int | None = None) -> Kind:
    """An integer from `minimum` to `maximum`, both included; None means no bound on that side."""
    return _number(
        "integer",
        int,
        f"an integer{_range(minimum, maximum)}",
        lambda value: (
            (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
        ),
    )


def _range(minimum: int | None, maximum: int | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return f" of at most {maximum}" if maximum is not None else ""


def number(rule: str = "", holds: Callable[[float], bool] = lambda value: True) -> Kind:
    """A finite number for which `holds`; `rule` says the same in words."""
    return _number(
        "number",
        float,
        f"a finite number {rule}".rstrip(),
        lambda value: math.isfinite(value) and holds(value),
    )


def positive() -> Kind:
    """A finite number above 0."""
    return number("above 0", lambda value: value > 0)


def choice(*words: str) -> Kind:
    """One of `words`, spelt exactly like it."""

    def read(text: str) -> Value:
        if text not in words:
            raise ValueError(text)
        return text

    return Kind("choice", ", ".join(words), read)


def _numbers(text: str) -> Value:
    values = tuple(float(part) for part in text.split(","))
    if not all(math.isfinite(value) for value in values):
        raise ValueError(text)
    return values


def _names(text: str) -> Value:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _token_ranges(text: str) -> Value:
    ranges: list[TokenRange] = []
    for part in text.split(",") if text else ():
        first, dots, last = part.partition("..")
        begin = int(first)
        end = int(last) if dots else begin
        if begin > end or begin <= (ranges[-1][1] if ranges else -1):
            raise ValueError(text)
        ranges.append((begin, end))
    return tuple(ranges)


SWITCH = Kind("switch", '0 or 1 ("", "0", "false" and "False" are off)', lambda t: t not in FALSE)
TEXT = Kind("text", "any text", lambda text: text or None)
PATH = Kind("path", "a path", lambda text: text or None)
NAMES = Kind("names", "names separated by commas", _names)
NUMBERS = Kind("numbers", "a finite number, or several separated by commas", _numbers)
TOKEN_RANGES = Kind("ranges", RANGES_FORMAT, _token_ranges)


def shown(value: Value) -> str:
    """A value as the text that gives it; "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple):
        return ",".join(_part(part) for part in value)
    return str(value)


def _part(part: str | float | TokenRange) -> str:
    if isinstance(part, tuple):
        return str(part[0]) if part[0] == part[1] else f"{part[0]}..{part[1]}"
    return str(part)
