"""`StatsLine`: logs a line of statistics over the steps since the line before.

Fields are those of the vendor engine's line that have a meaning here. Source: engine specification,
section 14.1.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import numpy as np

from deepinfer.cache import CacheManager
from deepinfer.engine.observe.stats import Step
from deepinfer.engine.observe.timers import Timers, timer_line
from deepinfer.engine.request import FinishReason, Request
from deepinfer.engine.scheduler import Scheduler

_log = logging.getLogger("deepinfer.engine.stats")


@dataclass
class _Window:
    """Sums over the steps and the finished requests since the last line was logged."""

    started: float
    preempted: int
    steps: int = 0
    prompt_rows: int = 0
    generated: int = 0
    prefill_seconds: float = 0.0
    seconds: float = 0.0
    first_tokens: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = field(default_factory=list)
    finished: int = 0
    aborted: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class StatsLine:
    """Logs a line every `interval` steps at INFO, and the timers at DEBUG.

    interval 0 or less: nothing is logged and nothing kept.
    """

    def __init__(
        self,
        interval: int,
        scheduler: Scheduler,
        cache: CacheManager,
        timers: Timers,
    ) -> None:
        self._interval = interval
        self._scheduler, self._cache = scheduler, cache
        self._timers = timers
        self._window = self._new_window()

    def _new_window(self) -> _Window:
        return _Window(time.perf_counter(), self._scheduler.num_preempted)

    def finished(self, request: Request) -> None:
        """Count a finished request."""
        if self._interval <= 0:
            return
        window = self._window
        for sequence in request.sequences:
            window.finished += 1
            window.aborted += sequence.finish_reason == FinishReason.ABORT
            window.input_tokens += sequence.prompt_length
            window.output_tokens += sequence.output_length

    def stepped(self, step: Step) -> None:
        """Count a step, and log the line when it is due."""
        if self._interval <= 0:
            return
        window = self._window
        window.steps += 1
        window.prompt_rows += step.prompt_rows
        window.generated += step.generated
        window.seconds += step.seconds
        rows = step.prompt_rows + step.decode_rows
        window.prefill_seconds += step.seconds * step.prompt_rows / rows
        if len(step.first_tokens):
            window.first_tokens.append(step.first_tokens)
        if window.steps < self._interval:
            return
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", self._line(step, rows))
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", timer_line(self._timers.stats()))
        self._window = self._new_window()

    def _line(self, step: Step, rows: int) -> str:
        window, scheduler, cache = self._window, self._scheduler, self._cache
        elapsed = max(time.perf_counter() - window.started, 1e-9)
        cur = max(step.seconds, 1e-9)
        first = np.concatenate(window.first_tokens) if window.first_tokens else np.zeros(1)
        prefill = window.prefill_seconds / max(window.seconds, 1e-9)
        ended = max(window.finished, 1)
        usage = (pool.num_used / pool.capacity for pool in (cache.blocks, cache.pages, cache.slots))
        blocks, pages, slots = usage
        return (
            f"is_prompt: {step.prompt_rows > 0}, "
            f"cur_SPS: {1 / cur:.1f}, avg_SPS: {window.steps / elapsed:.1f}, "
            f"cur_TPS: {rows / cur:.1f}, prompt_TPS: {window.prompt_rows / elapsed:.1f}, "
            f"completion_TPS: {window.generated / elapsed:.1f}, "
            f"running: {len(scheduler.running)}, pending: {len(scheduler.waiting)}, "
            f"chunked: {step.chunked}, num_batched_tokens: {rows} "
            f"[{rows / self._scheduler.limits.max_num_batched_tokens:.1%}], "
            f"KV_cache_usage: {blocks:.1%}, window_usage: {pages:.1%}, "
            f"state_cache_usage: {slots:.1%}, prefill/decode: {prefill:.1%}/{1 - prefill:.1%}, "
            f"TTFT max: {first.max() * 1e3:.1f} ms, mean: {first.mean() * 1e3:.1f} ms, "
            f"avg_length: ({window.input_tokens / ended:.1f}, {window.output_tokens / ended:.1f}), "
            f"finished: {window.finished}, "
            f"preempted: {scheduler.num_preempted - window.preempted}, "
            f"aborted: {window.aborted}, sum_seqlen_qxk: {step.sum_seqlen_qxk}, "
            f"max_seqlen_k: {step.max_seqlen_k}, min_seqlen_k: {step.min_seqlen_k}"
        )
