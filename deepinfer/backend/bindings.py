"""`Binding`: who runs an operator and why; the names of those who may."""

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
"""Who runs operators: the backend; a step's default body; the reference on the backend's device;
the reference on the host, with copies there and back."""

NOT_OVERRIDDEN = "not overridden"

Bounds = dict[str, tuple[int, int]]
"""Lowest and highest value by the name of a range, both included."""


@dataclass(frozen=True)
class Binding:
    """Who runs an operator: provider (native, composed, fallback, host, missing) and why.

    bounds: the sub-range that a native operator answers, empty when it answers all; remainder: the
    provider of the calls outside it, or who packs the same weights again to read them. is_called:
    the model calls it, or a step that is composed does.
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
        """Does the reference run a call that the model makes?"""
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
        """Everyone who may run a call of the operator."""
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
