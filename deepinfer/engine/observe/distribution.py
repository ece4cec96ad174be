"""`Distribution`: count, mean, maximum and percentiles of measured values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RECENT = 4096
"""How many of the latest values percentiles are computed from."""


@dataclass(frozen=True)
class DistributionStats:
    """Percentiles are of the latest 4096 values, everything else of all; 0 without any value."""

    count: int = 0
    total: float = 0.0
    mean: float = 0.0
    max: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class Distribution:
    """Collects values. Adding an array costs a few array operations, whatever its length."""

    def __init__(self) -> None:
        self._recent = np.zeros(RECENT)
        self._count = 0
        self._total = 0.0
        self._max = 0.0

    def add(self, value: float) -> None:
        """Add one value, at least 0."""
        self._recent[self._count % RECENT] = value
        self._count += 1
        self._total += value
        self._max = max(self._max, value)

    def extend(self, values: npt.NDArray[np.float64]) -> None:
        """Add values [n], each at least 0."""
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
        """Statistics of the values added so far."""
        if not self._count:
            return DistributionStats()
        recent = self._recent[: min(self._count, RECENT)]
        p50, p90, p99 = np.percentile(recent, (50, 90, 99)).tolist()
        mean = self._total / self._count
        return DistributionStats(self._count, self._total, mean, self._max, p50, p90, p99)
