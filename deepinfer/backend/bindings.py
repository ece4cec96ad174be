"""`Binding`: which provider runs an operator, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NATIVE = "native"
COMPOSED = "composed"
FALLBACK = "fallback"
HOST = "host"
MISSING = "missing"

PROVIDERS = (NATIVE, COMPOSED, FALLBACK, HOST)
"""What runs operators: the backend; a step's default body; the reference on the device; the host.

On the host it is the reference too, with copies there and back.
"""

NOT_OVERRIDDEN = "not overridden"

Bounds = dict[str, tuple[int, int]]
"""Lowest and highest value by name of a range, both included."""


@dataclass(frozen=True)
class Binding:
    """Which provider runs an operator (native, composed, fallback, host, missing), and why.

    bounds: the ranges in which a native operator runs, empty when it runs everywhere. remainder:
    the provider of the calls outside these ranges, or the one that packs the same weights a second
    time to read them. is_called: whether the model or a composed step calls the operator.
    """

    operator: str
    kind: str
    provider: str
    reason: str = ""
    bounds: tuple[tuple[str, tuple[int, int]], ...] = ()
    remainder: str = ""
    is_called: bool = False

    @property
    def lacks(self) -> bool:
        """Whether the reference runs a call that the model makes."""
        return self.is_called and bool({FALLBACK, HOST} & set(self.providers))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the operator's name."""
        return {
            "provider": self.provider,
            "reason": self.reason,
            "bounds": {name: list(bounds) for name, bounds in self.bounds},
            "remainder": self.remainder,
        }

    def __str__(self) -> str:
        return described(self.to_dict())

    @property
    def providers(self) -> tuple[str, ...]:
        """Every provider that may run a call of the operator."""
        return (self.provider, self.remainder) if self.remainder else (self.provider,)


def shown(bounds: Mapping[str, Sequence[int]]) -> str:
    """Bounds for messages: "rows 1..8, length 1..4096"."""
    return ", ".join(f"{name} {low}..{high}" for name, (low, high) in sorted(bounds.items()))


def described(record: Mapping[str, Any]) -> str:
    """`Binding.to_dict` in words: "native for rows 1..8, else fallback: REASON"."""
    who, remainder, reason = record["provider"], record["remainder"], record["reason"]
    if record["bounds"]:
        who = f"{who} for {shown(record['bounds'])}, else {remainder}"
    elif remainder:
        who = f"{who} and {remainder}"
    return f"{who}: {reason}" if reason else who
