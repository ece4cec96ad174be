"""`Stats`: what the engine has done, in windows of steps and in totals.

Names of the snapshot are the words of vLLM's metrics where it has them; the line that is logged has
the fields of the vendor engine's statistics that mean something here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from deepinfer.cache import CacheManager
from deepinfer.engine.request import FinishReason, Request
from deepinfer.engine.scheduler import Limits, Plan


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. Seconds, tokens and shares in [0, 1]; totals since the engine started."""

    num_requests_running: int
    num_requests_waiting: int
    kv_cache_usage: float
    window_cache_usage: float
    slot_usage: float
    prompt_tokens: int
    generation_tokens: int
    num_preemptions: int
    request_success: dict[str, int]
    steps: int
    prefill_tokens: int
    decode_tokens: int
    prefill_seconds: float
    decode_seconds: float
    schedule_seconds: float
    time_to_first_token_mean: float
    time_to_first_token_max: float


class Stats:
    """Counters of one engine, fed once per step."""

    def __init__(self, cache: CacheManager, limits: Limits) -> None:
        self._cache, self._limits = cache, limits
        self.steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.schedule_seconds = 0.0
        self.prefill_rows = 0
        self.decode_rows = 0
        self.reasons: dict[str, int] = {}
        self._first_token: list[float] = []
        self._window = _Window(time.perf_counter())

    def stepped(
        self, plan: Plan, started: float, planned: float, launched: float, ended: float
    ) -> None:
        """Account for one step; times are of `time.perf_counter`."""
        rows = plan.num_rows
        decoding = int(((plan.stops - plan.starts == 1) & plan.samples & (plan.starts > 0)).sum())
        prompt = rows - decoding
        self.steps += 1
        self.prompt_tokens += prompt
        self.generation_tokens += int(plan.samples.sum())
        self.prefill_rows += prompt
        self.decode_rows += decoding
        seconds = ended - started
        self.prefill_seconds += seconds * prompt / rows
        self.decode_seconds += seconds * decoding / rows
        self.schedule_seconds += (planned - started) + (ended - launched)
        self._window.steps += 1
        self._window.prompt += prompt
        self._window.generated += int(plan.samples.sum())
        self._window.seconds = seconds
        self._window.rows = rows

    def finished(self, request: Request) -> None:
        """Account for a finished request."""
        for sequence in request.sequences:
            reason = sequence.finish_reason
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            if sequence.first_token_at:
                self._first_token.append(sequence.first_token_at - request.arrival)
        del self._first_token[:-1000]

    def snapshot(self, running: int, waiting: int, preemptions: int) -> EngineStats:
        """The state now."""
        cache = self._cache
        first = self._first_token
        return EngineStats(
            num_requests_running=running,
            num_requests_waiting=waiting,
            kv_cache_usage=cache.blocks.num_used / cache.blocks.capacity,
            window_cache_usage=cache.pages.num_used / cache.pages.capacity,
            slot_usage=cache.slots.num_used / cache.slots.capacity,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            num_preemptions=preemptions,
            request_success=dict(self.reasons),
            steps=self.steps,
            prefill_tokens=self.prefill_rows,
            decode_tokens=self.decode_rows,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            schedule_seconds=self.schedule_seconds,
            time_to_first_token_mean=sum(first) / len(first) if first else 0.0,
            time_to_first_token_max=max(first, default=0.0),
        )

    def line(self, stats: EngineStats) -> str:
        """The statistics line over the steps since the last one; starts a new window."""
        window, now = self._window, time.perf_counter()
        elapsed = max(now - window.started, 1e-9)
        self._window = _Window(now)
        share = window.rows / self._limits.max_num_batched_tokens
        return (
            f"cur_SPS {1 / max(window.seconds, 1e-9):.1f}, avg_SPS {window.steps / elapsed:.1f}, "
            f"prompt_TPS {window.prompt / elapsed:.1f}, "
            f"completion_TPS {window.generated / elapsed:.1f}, "
            f"running {stats.num_requests_running}, pending {stats.num_requests_waiting}, "
            f"num_batched_tokens {window.rows} [{share:.0%}], "
            f"KV_cache_usage {stats.kv_cache_usage:.1%}, "
            f"window_usage {stats.window_cache_usage:.1%}, "
            f"state_cache_usage {stats.slot_usage:.1%}, "
            f"TTFT max {stats.time_to_first_token_max * 1e3:.0f} ms, "
            f"mean {stats.time_to_first_token_mean * 1e3:.0f} ms, "
            f"finished {sum(self.reasons.values())}, preempted {stats.num_preemptions}, "
            f"aborted {self.reasons.get(FinishReason.ABORT, 0)}"
        )


@dataclass
class _Window:
    started: float
    steps: int = 0
    prompt: int = 0
    generated: int = 0
    seconds: float = 0.0
    rows: int = 0
