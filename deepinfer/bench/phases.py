"""`PhaseTimer`: how the seconds of a step divide among the parts of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from deepinfer.engine import Engine

MODEL_PHASES = ("model", "head")
"""Phases that call the model's operators; what is left of a step is the engine's own."""


class PhaseTimer:
    """While entered, the methods that make up a step of one engine are timed.

    clock: gives seconds, such as `time.perf_counter`. A method that is called inside another one
    is counted in the outer one alone.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        runner = engine.runner
        self._clock = clock
        self._methods: list[tuple[str, Any, str]] = [
            ("schedule", engine.scheduler, "schedule"),
            ("batch", runner, "build_batch"),
            ("model", runner, "run"),
            ("head", runner, "head"),
            ("sample", engine.sampler, "draw"),
            ("commit", engine, "_commit"),
            ("statistics", engine.observer, "stepped"),
        ]
        self.phases = tuple(phase for phase, _, _ in self._methods)
        self._seconds = dict.fromkeys(self.phases, 0.0)
        self._inside = False

    def __enter__(self) -> PhaseTimer:
        for phase, owner, name in self._methods:
            setattr(owner, name, self._timed(phase, getattr(owner, name)))
        return self

    def __exit__(self, *error: object) -> None:
        for _, owner, name in self._methods:
            delattr(owner, name)  # the class's method shows again

    def take(self) -> dict[str, float]:
        """Seconds of each phase since the last call."""
        taken, self._seconds = self._seconds, dict.fromkeys(self.phases, 0.0)
        return taken

    def _timed(self, phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return method(*args, **kwargs)
            self._inside = True
            started = self._clock()
            try:
                return method(*args, **kwargs)
            finally:
                self._seconds[phase] += self._clock() - started
                self._inside = False

        return call
