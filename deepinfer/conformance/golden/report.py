"""Results of the golden check: one `Item` per thing compared, and the closing line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

PASSED = "passed"
FAILED = "failed"
ALLOWED = "allowed"
NOT_COVERED = "not covered"

BUILT_LATER = ("draft", "vision")
"""Components that may be left uncovered until they are built."""


@dataclass(frozen=True)
class Measure:
    """One number and its limit. sense: "<=" or ">=" (value sense limit passes)."""

    metric: str
    value: float
    sense: str
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the value keeps the limit; NaN never does."""
        return self.value <= self.limit if self.sense == "<=" else self.value >= self.limit

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which has no word for NaN and infinity: they become strings."""
        value = self.value if math.isfinite(self.value) else str(self.value)
        return {"metric": self.metric, "value": value, "sense": self.sense, "limit": self.limit}

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.3g} {self.sense} {self.limit:.3g}"


@dataclass(frozen=True)
class Item:
    """One comparison: its name, what was measured, and the outcome.

    component: "text", "draft" or "vision". outcome: passed, failed, not covered, or allowed (a
    limit was missed inside the number of exceptions that the data's rules allow).
    """

    name: str
    compute: str
    measures: tuple[Measure, ...]
    outcome: str
    component: str = "text"
    note: str = ""

    @classmethod
    def of(cls, name: str, compute: str, *measures: Measure, note: str = "") -> Item:
        """An item that passes if all measures do. ValueError where nothing was measured."""
        if not measures:
            raise ValueError(f"{name}: nothing was measured")
        outcome = PASSED if all(measure.passed for measure in measures) else FAILED
        return cls(name, compute, measures, outcome, note=note)

    @classmethod
    def broken(cls, name: str, compute: str, note: str) -> Item:
        """A failed item for data that could not be compared."""
        return cls(name, compute, (), FAILED, note=note)

    @classmethod
    def uncovered(cls, name: str, component: str, note: str) -> Item:
        """An item for data that no check compares."""
        return cls(name, "", (), NOT_COVERED, component, note)

    @property
    def measured(self) -> bool:
        """Whether every measure gave a finite number."""
        return bool(self.measures) and all(math.isfinite(m.value) for m in self.measures)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "compute": self.compute,
            "measures": [measure.to_dict() for measure in self.measures],
            "outcome": self.outcome,
            "component": self.component,
            "note": self.note,
        }

    def __str__(self) -> str:
        parts = [f"{self.outcome:<11}", f"{self.compute:<4}", self.name]
        if self.measures:
            parts.append(f"[{'; '.join(str(measure) for measure in self.measures)}]")
        return " ".join(parts) + (f" ({self.note})" if self.note else "")


@dataclass
class GoldenReport:
    """All items of one run. require_all: uncovered items count as failed."""

    items: list[Item] = field(default_factory=list)
    require_all: bool = False

    def counts(self) -> tuple[int, int, int]:
        """(covered, failed, not covered); failed ones are counted as covered too."""
        covered = sum(item.outcome != NOT_COVERED for item in self.items)
        failed = sum(item.outcome == FAILED for item in self.items)
        uncovered = [item for item in self.items if item.outcome == NOT_COVERED]
        counted = [i for i in uncovered if self.require_all or i.component not in BUILT_LATER]
        return covered, failed + len(counted), len(uncovered)

    def summary(self) -> str:
        """The closing line."""
        covered, failed, uncovered = self.counts()
        return f"covered {covered}, failed {failed}, not covered {uncovered}"

    @property
    def exit_code(self) -> int:
        """0 only if something was covered and nothing failed."""
        covered, failed, _ = self.counts()
        return 0 if covered and not failed else 1
