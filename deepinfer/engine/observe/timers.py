"""`Timers`: measure how long each part of a step takes on the host.

    with timers.timed("forward"):
        ...

While a profile is taken, a part also opens the profiler range `deepinfer:<name>`.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType

import torch

PARTS = ("schedule", "prepare_input", "forward", "sample", "commit")
"""The parts of a step, in order."""


@dataclass(frozen=True)
class TimerStats:
    """How often a part was measured, and its seconds: total, last, mean and longest."""

    count: int
    total: float
    last: float
    mean: float
    max: float


class Timer:
    """A context manager that measures one part; it must not be nested in itself."""

    __slots__ = ("_range", "_started", "_timers", "count", "last", "max", "name", "total")

    def __init__(self, timers: Timers, name: str) -> None:
        self._timers = timers
        self.name = name
        self.count = 0
        self.total = self.last = self.max = 0.0
        self._started = 0.0
        self._range: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        if self._timers.profiling:
            self._range = _range_of(self.name)
            self._range.__enter__()
        self._started = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.last = seconds = time.perf_counter() - self._started
        self.count += 1
        self.total += seconds
        if seconds > self.max:
            self.max = seconds
        if self._range is not None:
            self._range.__exit__(kind, error, trace)
            self._range = None

    def stats(self) -> TimerStats:
        """Statistics of the measurements so far."""
        return TimerStats(
            self.count, self.total, self.last, self.total / max(self.count, 1), self.max
        )


class Timers:
    """The timers of one engine; only its stepping thread uses them.

    profiling: a profile is being taken, so parts open ranges.
    """

    def __init__(self) -> None:
        self.profiling = False
        self._timers = {name: Timer(self, name) for name in PARTS}

    def timed(self, name: str) -> Timer:
        """The context manager that measures the part `name`, one of `PARTS`."""
        return self._timers[name]

    def stats(self) -> dict[str, TimerStats]:
        """Statistics by part, in order."""
        return {name: timer.stats() for name, timer in self._timers.items()}


def _range_of(name: str) -> AbstractContextManager[object]:
    """The profiler range of a part."""
    return torch.profiler.record_function(f"deepinfer:{name}")


def timer_line(timers: dict[str, TimerStats]) -> str:
    """The log line with the milliseconds of every part."""
    parts = (
        f"{name} cur {one.last * 1e3:.3f} mean {one.mean * 1e3:.3f} max {one.max * 1e3:.3f}"
        for name, one in timers.items()
    )
    return "timers in ms: " + ", ".join(parts)
