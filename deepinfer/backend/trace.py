"""`Tracer`: operators that compute shapes only and record which calls are made.

A step runs its default body, so that the calls inside it are recorded with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch

from deepinfer.backend.base import DECLARATIONS
from deepinfer.backend.functions import named, positional
from deepinfer.backend.operators import CallSpec, Declaration, Fact
from deepinfer.backend.shapes import Shapes
from deepinfer.formats.dtypes import COMPUTE_DTYPES

_NAMES = {dtype: name for name, dtype in COMPUTE_DTYPES.items()}


def shown_facts(operator: str, arguments: tuple[Any, ...]) -> dict[str, Fact]:
    """The declared facts that the arguments of a call show, without those that it inherits.

    arguments: in the order of the contract's signature. ValueError for an operator that declares
    no facts.
    """
    facts = DECLARATIONS[operator].facts
    if facts is None:
        raise ValueError(f"operator {operator!r} declares no facts: no model lists its calls")
    values = facts(SimpleNamespace(**named(operator, arguments)))
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Fact:
    """A fact as `CallSpec` states it: a dtype, a scheme or a numeric mode by its name."""
    if isinstance(value, torch.dtype):
        return _NAMES[value]
    fact: Fact = value.value if isinstance(value, Enum) else value
    return fact


class Tracer(Shapes):
    """Records each distinct call in order of first use, the call of a step before those inside.

    ranges: (lowest, highest) of "rows", of "sequences" for operators with at most one row for each
    sequence, and of "length". inherited: facts that calls outside any step take over; it may be
    changed between calls.
    """

    def __init__(
        self, ranges: Mapping[str, tuple[int, int]], inherited: Mapping[str, Fact]
    ) -> None:
        self.ranges = ranges
        self.inherited = dict(inherited)
        self._calls: dict[CallSpec, None] = {}
        self._steps: list[CallSpec] = []
        for operator, declaration in DECLARATIONS.items():
            if declaration.facts is not None:
                setattr(self, operator, self._traced(operator, getattr(self, operator)))

    @property
    def calls(self) -> list[CallSpec]:
        """What was called so far."""
        return list(self._calls)

    def _traced(self, operator: str, function: Callable[..., Any]) -> Callable[..., Any]:
        declaration = DECLARATIONS[operator]

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = positional(operator, args, kwargs)
            spec = self._spec(operator, declaration, arguments)
            self._calls.setdefault(spec)
            self._steps.append(spec)
            try:
                return function(*arguments)
            finally:
                self._steps.pop()

        return call

    def _spec(
        self, operator: str, declaration: Declaration, arguments: tuple[Any, ...]
    ) -> CallSpec:
        step = self._steps[-1] if self._steps else None
        known = self.inherited if step is None else dict(step.facts)
        ranges = {name: self.ranges[name] for name in declaration.ranges}
        if step is not None:
            ranges["rows"] = dict(step.ranges)["rows"]
        elif declaration.per_sequence:
            ranges["rows"] = self.ranges["sequences"]
        facts = shown_facts(operator, arguments)
        for name in declaration.inherited:
            if name not in ranges:
                facts[name] = known[name]
        return CallSpec.of(operator, facts, ranges, step.operator if step else None)
