"""Operators that a backend answers for a sub-range of their calls, decided call by call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deepinfer.backend.base import DECLARATIONS, Contract
from deepinfer.backend.bindings import HOST, NATIVE, Bounds
from deepinfer.backend.functions import Function, at, positional

Counts = Counter[tuple[str, str]]
"""Calls by (operator, provider), for operators whose provider is chosen call by call or is HOST."""


@dataclass(frozen=True)
class Bounded:
    """An operator that the backend runs within bounds and another provider outside them.

    outside: what runs outside; None for a step's default body, which needs the operators that it
    calls. remainder: the provider outside. counts: calls so far by provider.
    """

    operator: str
    bounds: Bounds
    inside: Function
    outside: Function | None
    remainder: str
    counts: Counts

    def on(self, table: Contract) -> Function:
        """The function that chooses the provider by the sizes of each call's arguments."""
        operator, inside, counts = self.operator, self.inside, self.counts
        outside = self.outside or getattr(Contract, operator).__get__(table)
        measured = DECLARATIONS[operator].measured
        tests = [(at(operator, measured[name]), *pair) for name, pair in self.bounds.items()]
        native, other = (operator, NATIVE), (operator, self.remainder)

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = positional(operator, args, kwargs)
            if all(low <= _size(read(arguments)) <= high for read, low, high in tests):
                counts[native] += 1
                return inside(*arguments)
            if self.remainder != HOST:  # which counts for itself
                counts[other] += 1
            return outside(*arguments)

        return call


def _size(value: Any) -> int:
    """Rows of a tensor, or the number itself."""
    return value.shape[0] if isinstance(value, Tensor) else int(value)
