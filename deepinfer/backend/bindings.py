"""`Binding`: who runs an operator and why; the names of those who may."""

from __future__ import annotations

from dataclasses import dataclass

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
    provider of the calls outside it.
    """

    operator: str
    kind: str
    provider: str
    reason: str = ""
    bounds: tuple[tuple[str, tuple[int, int]], ...] = ()
    remainder: str = ""

    @property
    def providers(self) -> tuple[str, ...]:
        """Everyone who may run a call of the operator."""
        return (self.provider, self.remainder) if self.remainder else (self.provider,)


def shown(bounds: Bounds) -> str:
    """Bounds for messages: "rows 1..8, length 1..4096"."""
    return ", ".join(f"{name} {low}..{high}" for name, (low, high) in sorted(bounds.items()))
