"""`Distribution`: count, mean, extremes and percentiles of what was measured, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RECENT = 4096
"""Latest values from which percentiles are taken."""


@dataclass(frozen=True)
class DistributionStats:
    """Of all values: count, total, mean and max. Of the latest 4096: percentiles. 0 without any."""

    count: int = 0
    total: float = 0.0
    mean: float = 0.0
    max: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class Distribution:
    """Values of one kind; adding an array costs a few array operations, whatever its length."""

    def __init__(self) -> None:
        self._recent = np.zeros(RECENT)
        self._count = 0
        self._total = 0.0
        self._max = 0.0

    def add(self, value: float) -> None:
        """Add one value of at least 0."""
        self._recent[self._count % RECENT] = value
        self._count += 1
        self._total += value
        self._max = max(self._max, value)

    def extend(self, values: npt.NDArray[np.float64]) -> None:
        """Add values of at least 0 [n]."""
        if not len(values):
            return
        kept = values[-RECENT:]
        start = (self._count + len(values) - len(kept)) % RECENT
        first = min(len(kept), RECENT - start)
        self._recent[start : start + first] = kept[:first]
        self._recent[: len(kept) - first] = kept[first:]
        self._count += len(values)
        self._total += float(values.sum())
        self._max = max(self._max, float(values.max()))

    def stats(self) -> DistributionStats:
        """What was added so far."""
        if not self._count:
            return DistributionStats()
        recent = self._recent[: min(self._count, RECENT)]
        p50, p90, p99 = np.percentile(recent, (50, 90, 99)).tolist()
        mean = self._total / self._count
        return DistributionStats(self._count, self._total, mean, self._max, p50, p90, p99)
