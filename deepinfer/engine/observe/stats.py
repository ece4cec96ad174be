"""`EngineStats`: a snapshot of an engine's counters and gauges. `Stats`: what it is taken from.

Names are those of vLLM's metrics where it has them. As there, a request with n samples counts n
times.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from deepinfer.arrays import Int64Array
from deepinfer.cache import CacheManager
from deepinfer.cache.allocator import BlockAllocator
from deepinfer.engine.batch import Rows
from deepinfer.engine.observe.distribution import Distribution, DistributionStats
from deepinfer.engine.observe.timers import Timers, TimerStats
from deepinfer.engine.request import Request, Sequence
from deepinfer.engine.sequence_table import SequenceTable


@dataclass(frozen=True)
class PoolStats:
    """Use of one kind of cache memory, whose units are blocks, pages or slots.

    capacity: units without the dummy. used: units in use; a shared one counts once.
    """

    unit_bytes: int
    capacity: int
    used: int

    @property
    def usage(self) -> float:
        """The share of units in use, in [0, 1]."""
        return self.used / self.capacity

    @property
    def used_bytes(self) -> int:
        """The bytes of the units in use."""
        return self.used * self.unit_bytes

    @property
    def total_bytes(self) -> int:
        """The bytes of the whole memory, with the dummy unit."""
        return (self.capacity + 1) * self.unit_bytes


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. Totals count from the start of the engine; times are in seconds.

    num_requests_running, num_requests_waiting: numbers of sequences. context, window, state: the
    cache memory in blocks, pages and slots. prompt_tokens: computed rows of prompts; rows that are
    computed again after a preemption count again. generation_tokens: drawn tokens.
    request_success: number of finished sequences by finish reason.

    iteration_tokens: rows per step. time_to_first_token_seconds and inter_token_latency_seconds are
    counted at each token. All other distributions are counted when a sequence that drew a token has
    finished: request_queue_time_seconds (arrival to first row), request_prefill_time_seconds (first
    row to first token), request_decode_time_seconds (first to last token),
    request_inference_time_seconds (first row to last token), request_time_per_output_token_seconds
    (decode time per token after the first), e2e_request_latency_seconds, request_prompt_tokens and
    request_generation_tokens.

    prefill_seconds, decode_seconds: the time of all steps, divided between prompts and decoding by
    their rows. decode_tokens: rows of sequences past their prompt. timers: time of the parts of a
    step on the host.
    """

    num_requests_running: int
    num_requests_waiting: int
    context: PoolStats
    window: PoolStats
    state: PoolStats
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    request_success: dict[str, int]
    steps: int
    iteration_tokens: DistributionStats
    time_to_first_token_seconds: DistributionStats
    inter_token_latency_seconds: DistributionStats
    request_time_per_output_token_seconds: DistributionStats
    e2e_request_latency_seconds: DistributionStats
    request_queue_time_seconds: DistributionStats
    request_prefill_time_seconds: DistributionStats
    request_decode_time_seconds: DistributionStats
    request_inference_time_seconds: DistributionStats
    request_prompt_tokens: DistributionStats
    request_generation_tokens: DistributionStats
    decode_tokens: int
    prefill_seconds: float
    decode_seconds: float
    timers: dict[str, TimerStats] = field(default_factory=dict)

    @property
    def prefill_tokens(self) -> int:
        """The same as `prompt_tokens`, under the name that goes with `decode_tokens`."""
        return self.prompt_tokens

    @property
    def kv_cache_usage_perc(self) -> float:
        """The share of context blocks in use, in [0, 1]; vLLM has a metric of this name."""
        return self.context.usage


@dataclass(frozen=True)
class Step:
    """Numbers of one step, for the statistics line.

    chunked: sequences whose prompt is not complete after the step. sum_seqlen_qxk: the sum over
    sequences of rows x context. seconds: duration of the step. first_tokens: for each sequence that
    got its first token in the step, the seconds since its arrival.
    """

    prompt_rows: int
    decode_rows: int
    generated: int
    chunked: int
    sum_seqlen_qxk: int
    max_seqlen_k: int
    min_seqlen_k: int
    seconds: float
    first_tokens: npt.NDArray[np.float64]


_NONE = np.zeros(0)


class Stats:
    """Counters of one engine. The stepping thread updates them; any thread may take a snapshot.

    What a step needs of its sequences is kept in arrays by slot [S], so that a step of many
    sequences costs a few array operations.
    """

    def __init__(self, cache: CacheManager, table: SequenceTable, timers: Timers) -> None:
        self._cache, self._table, self._timers = cache, table, timers
        self._lock = threading.Lock()
        slots = len(cache.length)
        self._arrival = np.zeros(slots)
        self._last_token = np.zeros(slots)
        self.steps = self.prompt_tokens = self.generation_tokens = self.decode_tokens = 0
        self.prefill_seconds = self.decode_seconds = 0.0
        self._reasons: dict[str, int] = {}
        self._iteration_tokens = Distribution()
        self._first_token = Distribution()
        self._between_tokens = Distribution()
        self._requests = {name: Distribution() for name in _REQUEST_METRICS}

    def entered(self, sequence: Sequence) -> None:
        """Note a sequence that starts to run, for the first time or again."""
        slot = sequence.slot
        self._arrival[slot] = sequence.request.arrival
        self._last_token[slot] = sequence.last_token_at

    def preempted(self, sequence: Sequence) -> None:
        """Note a sequence that is about to lose its slot by preemption."""
        sequence.last_token_at = float(self._last_token[sequence.slot])

    def stepped(self, rows: Rows, ids: Int64Array, seconds: float) -> Step:
        """Count a step; ids [drawing]: its tokens, -1 where none could be drawn."""
        after_prompt = rows.starts >= self._table.prompt_length[rows.slots]
        decoding = int(np.count_nonzero((rows.counts == 1) & rows.draws & after_prompt))
        total, drawn = rows.total, rows.drawing_slots
        drawing = len(drawn)
        if (ids < 0).any():
            drawn = drawn[ids >= 0]
        now = time.monotonic()
        before = self._last_token[drawn]
        gaps, first = now - before, _NONE
        if not (before > 0).all():
            gaps = gaps[before > 0]
            # these are first tokens: a preempted sequence knows the time of its last one
            first = now - self._arrival[drawn[before == 0]]
        self._last_token[drawn] = now
        with self._lock:
            self.steps += 1
            self.prompt_tokens += total - decoding
            self.decode_tokens += decoding
            self.generation_tokens += len(drawn)
            self.prefill_seconds += seconds * (total - decoding) / total
            self.decode_seconds += seconds * decoding / total
            self._iteration_tokens.add(total)
            self._first_token.extend(first)
            self._between_tokens.extend(gaps)
        return Step(
            total - decoding,
            decoding,
            len(drawn),
            len(rows.slots) - drawing,
            int(rows.counts @ rows.stops),
            int(rows.stops.max()),
            int(rows.stops.min()),
            seconds,
            first,
        )

    def finished(self, request: Request) -> None:
        """Count a finished request."""
        with self._lock:
            for sequence in request.sequences:
                reason = sequence.finish_reason
                self._reasons[reason] = self._reasons.get(reason, 0) + 1
                if sequence.output_length:
                    self._add_times(request, sequence)

    def _add_times(self, request: Request, sequence: Sequence) -> None:
        first, end = sequence.first_token_at, sequence.finished_at
        values = {
            "e2e_request_latency_seconds": end - request.arrival,
            "request_queue_time_seconds": request.scheduled_at - request.arrival,
            "request_prefill_time_seconds": first - request.scheduled_at,
            "request_decode_time_seconds": end - first,
            "request_inference_time_seconds": end - request.scheduled_at,
            "request_prompt_tokens": sequence.prompt_length,
            "request_generation_tokens": sequence.output_length,
        }
        if sequence.output_length > 1:
            per_token = (end - first) / (sequence.output_length - 1)
            values["request_time_per_output_token_seconds"] = per_token
        for name, value in values.items():
            self._requests[name].add(value)

    def snapshot(
        self, running: int, waiting: int, preemptions: int, slot_bytes: int
    ) -> EngineStats:
        """The state now.

        All counters are of one moment. Queue lengths and pools may be those of a moment beside it.
        """
        cache = self._cache
        with self._lock:
            return EngineStats(
                num_requests_running=running,
                num_requests_waiting=waiting,
                context=_pool(cache.blocks, cache.layout.block_bytes),
                window=_pool(cache.pages, cache.layout.page_bytes),
                state=_pool(cache.slots, slot_bytes),
                num_preemptions=preemptions,
                prompt_tokens=self.prompt_tokens,
                generation_tokens=self.generation_tokens,
                request_success=dict(self._reasons),
                steps=self.steps,
                iteration_tokens=self._iteration_tokens.stats(),
                time_to_first_token_seconds=self._first_token.stats(),
                inter_token_latency_seconds=self._between_tokens.stats(),
                decode_tokens=self.decode_tokens,
                prefill_seconds=self.prefill_seconds,
                decode_seconds=self.decode_seconds,
                timers=self._timers.stats(),
                **{name: one.stats() for name, one in self._requests.items()},
            )


_REQUEST_METRICS = (
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
)


def _pool(allocator: BlockAllocator, unit_bytes: int) -> PoolStats:
    return PoolStats(unit_bytes, allocator.capacity, allocator.num_used)
