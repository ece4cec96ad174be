"""Typed reading of one JSON object of a configuration.

A `Section` reads and checks one key at a time, and remembers which keys were read: the others are
the unknown keys. Every error is a `ConfigError` that names the key, its value and the rule. Nothing
is converted: 64.0, "64" and true are no integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

from deepinfer.errors import ConfigError

LARGEST_INTEGER: Final = 2**63 - 1
LARGEST_NUMBER: Final = (
    2 - 2**-23
) * 2.0**127  # the largest number of fp32, in which the model computes


class _Required:
    """The type of `REQUIRED`, which marks keys without a default."""


REQUIRED: Final = _Required()


def shown(value: object) -> str:
    """A value as JSON writes it, shortened to fit into a message."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


class Section:
    """One JSON object. path: its dotted name, "" at the top. source: the name of the file.

    Each reading method takes a published key and its rule. The key must be present and not null
    unless the method says otherwise. used False: the key has no meaning in this configuration, so
    it may be absent or null, and only its type is checked.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        source: str,
        path: str = "",
        aliases: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.values = dict(values)
        self.source = source
        self.path = path
        self._asked: set[str] = set()
        self._nested: list[Section] = []
        for key, others in (aliases or {}).items():
            self._merge(key, others)

    def _merge(self, key: str, others: tuple[str, ...]) -> None:
        """Rename other spellings of a key to the published one; their values must agree."""
        for other in others:
            if other not in self.values:
                continue
            value = self.values.pop(other)
            if key in self.values and self.values[key] != value:
                raise self.error(
                    key,
                    self.values[key],
                    f"equal to {other}, another spelling of it, which is {shown(value)}; "
                    "keep one of them",
                )
            self.values[key] = value

    def name(self, key: str) -> str:
        """Dotted name of a key."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, value: object, rule: str) -> ConfigError:
        """The error for a key. rule: the end of the sentence "must be ..."."""
        return ConfigError(f"{self.source}: {self.name(key)} = {shown(value)}: must be {rule}")

    def unknown(self) -> list[str]:
        """Dotted names of the keys that were not read, those of nested objects included."""
        names = [self.name(key) for key in self.values if key not in self._asked]
        return names + [name for nested in self._nested for name in nested.unknown()]

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.values.get(key) is not None

    def ignore(self, *keys: str) -> None:
        """Mark keys as known that have no effect on inference."""
        self._asked.update(keys)

    def _raw(self, key: str, rule: str, default: object) -> Any:
        self._asked.add(key)
        if key in self.values:
            return self.values[key]
        if isinstance(default, _Required):
            raise ConfigError(
                f"{self.source}: {self.name(key)} is missing: must be present and {rule}"
            )
        return default

    def integer(
        self,
        key: str,
        *,
        low: int | None = 1,
        high: int | None = None,
        used: bool = True,
    ) -> int:
        """An integer in [low, high]; 0 where absent and unused."""
        if not used:
            value = self.optional_integer(key, low=None)
            return 0 if value is None else value
        rule = _range_rule("an integer", low, high)
        value = self._raw(key, rule, REQUIRED)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, value, rule)
        self._check_integer(key, value, low, high, rule)
        return value

    def _check_integer(
        self, key: str, value: int, low: int | None, high: int | None, rule: str
    ) -> None:
        if (low is not None and value < low) or (high is not None and value > high):
            raise self.error(key, value, rule)
        if abs(value) > LARGEST_INTEGER:
            raise self.error(key, value, "an integer of at most 64 bits")

    def optional_integer(
        self, key: str, *, low: int | None = 0, high: int | None = None
    ) -> int | None:
        """An integer in [low, high], or None where the key is absent or null."""
        if not self.has(key):
            self._asked.add(key)
            return None
        return self.integer(key, low=low, high=high)

    def number(
        self,
        key: str,
        *,
        above: float | None = None,
        low: float | None = None,
        used: bool = True,
    ) -> float:
        """A number that fp32 can hold, > `above` or >= `low`; 0.0 where absent and unused."""
        if not used:
            above = low = None
            if not self.has(key):
                self._asked.add(key)
                return 0.0
        rule = "a finite number"
        if above is not None:
            rule += f" greater than {above:g}"
        if low is not None:
            rule += f" of at least {low:g}"
        value = self._raw(key, rule, REQUIRED)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, value, rule)
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        outside = (above is not None and not result > above) or (low is not None and result < low)
        if not math.isfinite(result) or outside:
            raise self.error(key, value, rule)
        if abs(result) > LARGEST_NUMBER:
            raise self.error(key, value, f"{rule} that fp32 can hold")
        return result

    def flag(self, key: str, *, must: bool, default: bool | _Required = REQUIRED) -> bool:
        """A boolean for which only the value `must` is supported."""
        rule = f"{shown(must)} (the only supported value)"
        value: object = self._raw(key, rule, default)
        if value is not must:
            raise self.error(key, value, rule)
        return must

    def text(self, key: str) -> str:
        """Any string."""
        value = self._raw(key, "a string", REQUIRED)
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def literal(self, key: str, *allowed: str, default: str | _Required = REQUIRED) -> str:
        """One of the strings `allowed`."""
        names = " or ".join(f'"{name}"' for name in allowed)
        rule = f"{names} (the only supported value{'s' if len(allowed) > 1 else ''})"
        value = self._raw(key, rule, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.error(key, value, rule)
        return value

    def integers(
        self,
        key: str,
        *,
        low: int = 0,
        high: int | None = None,
        increasing: bool = False,
        used: bool = True,
    ) -> tuple[int, ...]:
        """A list of integers in [low, high], strictly increasing where `increasing`.

        () where absent and unused.
        """
        if not used:
            low, high, increasing = -LARGEST_INTEGER, None, False
            if not self.has(key):
                self._asked.add(key)
                return ()
        rule = _range_rule("a list of integers", low, high)
        value = self._raw(key, rule, REQUIRED)
        if not isinstance(value, list):
            raise self.error(key, value, rule)
        for i, item in enumerate(value):
            if not isinstance(item, int) or isinstance(item, bool):
                raise self.error(f"{key}[{i}]", item, f"an integer ({self.name(key)} is {rule})")
            self._check_integer(
                f"{key}[{i}]", item, low, high, _range_rule("an integer", low, high)
            )
        if increasing and any(b <= a for a, b in itertools.pairwise(value)):
            raise self.error(key, value, "strictly increasing")
        return tuple(value)

    def section(
        self, key: str, hint: str = "", aliases: Mapping[str, tuple[str, ...]] | None = None
    ) -> Section:
        """A nested object. hint: what follows "must be an object" in the error."""
        rule = "an object" + hint
        value = self._raw(key, rule, REQUIRED)
        if not isinstance(value, Mapping):
            raise self.error(key, value, rule)
        nested = Section(value, self.source, self.name(key), aliases)
        self._nested.append(nested)
        return nested

    def optional_section(
        self, key: str, aliases: Mapping[str, tuple[str, ...]] | None = None
    ) -> Section | None:
        """A nested object, or None where the key is absent or null."""
        if not self.has(key):
            self._asked.add(key)
            return None
        return self.section(key, " or null", aliases)


def _range_rule(noun: str, low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f"{noun} in {low}..{high}"
    if low is not None:
        return f"{noun} of at least {low}"
    if high is not None:
        return f"{noun} of at most {high}"
    return noun
