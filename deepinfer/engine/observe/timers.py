"""`Timers`: how long the parts of a step take on the host.

    with timers.timed("forward"):
        ...

A part also opens the profiler range `deepinfer:<name>` while a profile is taken, and only then.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType

import torch

PARTS = ("schedule", "prepare_input", "forward", "sample", "commit")
"""Parts of a step, in order."""


@dataclass(frozen=True)
class TimerStats:
    """Seconds that one part took: calls, their sum, the last one, the mean and the longest."""

    count: int
    total: float
    last: float
    mean: float
    max: float


class Timer:
    """A context manager that measures one part; not to be entered again inside itself."""

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
        """What was measured so far."""
        return TimerStats(
            self.count, self.total, self.last, self.total / max(self.count, 1), self.max
        )


class Timers:
    """The timers of one engine, all used by the thread that steps it.

    profiling: a profile is taken now, so parts show as ranges.
    """

    def __init__(self) -> None:
        self.profiling = False
        self._timers = {name: Timer(self, name) for name in PARTS}

    def timed(self, name: str) -> Timer:
        """The context manager that measures the part `name`, one of PARTS."""
        return self._timers[name]

    def stats(self) -> dict[str, TimerStats]:
        """Every part by name, in order."""
        return {name: timer.stats() for name, timer in self._timers.items()}


def _range_of(name: str) -> AbstractContextManager[object]:
    """The range of a part in a profile."""
    return torch.profiler.record_function(f"deepinfer:{name}")


def timer_line(timers: dict[str, TimerStats]) -> str:
    """Milliseconds of every part on one line, as they are logged."""
    parts = (
        f"{name} cur {one.last * 1e3:.3f} mean {one.mean * 1e3:.3f} max {one.max * 1e3:.3f}"
        for name, one in timers.items()
    )
    return "timers in ms: " + ", ".join(parts)
