"""`Observer`: the one object that an engine tells what happens.

It always counts and measures. With settings it also logs the statistics line, runs Python's garbage
collection by steps and serves the profiling endpoint, until `close`.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deepinfer.cache import CacheManager
from deepinfer.engine.batch import Rows
from deepinfer.engine.observe import request_log
from deepinfer.engine.observe.collector import Collector
from deepinfer.engine.observe.profile_server import ProfileServer
from deepinfer.engine.observe.profiling import ProfileError, Profiler, check_directory
from deepinfer.engine.observe.stats import EngineStats, Stats
from deepinfer.engine.observe.stats_line import StatsLine
from deepinfer.engine.observe.timers import Timer, Timers
from deepinfer.engine.request import Request, Sequence
from deepinfer.engine.scheduler import Scheduler
from deepinfer.errors import UsageError
from deepinfer.settings.settings import Settings

LAST_PORT = 65535


class Observer:
    """Watches one engine. Only `stats` may be called by other threads than the stepping one.

    settings: None: no statistics line, no endpoint, and Python's garbage collection unchanged.
    log_stats: log the statistics line. device_index: the number of the engine's device.
    """

    def __init__(
        self,
        cache: CacheManager,
        scheduler: Scheduler,
        settings: Settings | None = None,
        *,
        log_stats: bool = True,
        device_index: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self.timers = Timers()
        self.profiler = Profiler(self.timers, device_index)
        self._stats = Stats(cache, scheduler.table, self.timers)
        interval = collect_interval = 0
        self.server: ProfileServer | None = None
        if settings is not None:
            interval = settings.integer("DEEPINFER_LOGGING_INTERVAL_STEP") if log_stats else 0
            collect_interval = settings.integer("DEEPINFER_GC_INTERVAL_STEP")
            if settings.flag("DEEPINFER_PROFILE_HTTP_ENABLE"):
                self.server = _serve(self.profiler, settings, device_index)
        self._line = StatsLine(interval, scheduler, cache, self.timers)
        self._collector = Collector(collect_interval)
        self._started = 0.0
        self._closed = False

    def timed(self, name: str) -> Timer:
        """A context manager that measures one part of a step, one of `timers.PARTS`."""
        return self.timers.timed(name)

    def arrived(self, request: Request) -> None:
        """Call when a request was queued."""
        request_log.arrived(request)

    def entered(self, sequence: Sequence) -> None:
        """Call when a sequence starts to run, for the first time or again."""
        self._stats.entered(sequence)

    def preempted(self, sequence: Sequence) -> None:
        """Call before a preempted sequence loses its memory."""
        self._stats.preempted(sequence)
        request_log.preempted(sequence)

    def first_token(self, sequence: Sequence) -> None:
        """Call when a sequence got its first token."""
        request_log.first_token(sequence)

    def finished(self, request: Request) -> None:
        """Call when all samples of a request have ended."""
        self._stats.finished(request)
        self._line.finished(request)
        request_log.finished(request)

    def step_begins(self) -> None:
        """Call before a step is planned."""
        self.profiler.step_begins()
        if not self._closed:
            self._collector.step()
        self._started = time.perf_counter()

    def stepped(self, rows: Rows, ids: npt.NDArray[np.int64]) -> None:
        """Call when a step was committed; ids [drawing]: tokens, -1 where none could be drawn."""
        step = self._stats.stepped(rows, ids, time.perf_counter() - self._started)
        self._line.stepped(step)

    def step_ends(self, idle: bool) -> None:
        """Call after a step, of a failed one too. idle: no request is left."""
        self.profiler.step_ends()
        if idle:
            self._collector.release()

    def stats(self, slot_bytes: int) -> EngineStats:
        """The counters and gauges of the engine. slot_bytes: the size of a slot."""
        scheduler = self._scheduler
        return self._stats.snapshot(
            len(scheduler.running), len(scheduler.waiting), scheduler.num_preempted, slot_bytes
        )

    def close(self) -> None:
        """End profiling, the endpoint and the collector; may be called again."""
        self._closed = True
        self._collector.release()
        self.profiler.close()
        if self.server is not None:
            self.server.close()
            self.server = None


def _serve(profiler: Profiler, settings: Settings, device_index: int) -> ProfileServer:
    """Start the profiling endpoint; UsageError where the settings do not allow it."""
    base = settings.integer("DEEPINFER_PROFILE_HTTP_PORT_BASE")
    if base + device_index > LAST_PORT:
        raise UsageError(
            f"DEEPINFER_PROFILE_HTTP_PORT_BASE is {base}, which with device {device_index} is "
            f"beyond {LAST_PORT}; choose a smaller one"
        )
    directory = Path(settings.text("DEEPINFER_TORCH_PROFILER_DIR") or tempfile.gettempdir())
    try:
        check_directory(directory)
    except ProfileError as error:
        raise UsageError(f"DEEPINFER_TORCH_PROFILER_DIR cannot be used: {error}") from None
    return ProfileServer(profiler, directory, base + device_index)
