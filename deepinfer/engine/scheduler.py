"""`Scheduler`: which rows of which sequences make the next step.

Continuous batching: every running sequence gives its next row (or the next chunk of its prompt), in
order of arrival, then waiting ones are admitted while tokens, slots and memory last. When memory is
short the latest arrival is preempted: its memory is taken back and it is computed again later from
its prompt and what it had generated. The earliest arrival is preempted only when it is alone and
still does not fit, which ends it, so every step makes progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from deepinfer.cache import CacheManager
from deepinfer.cache.copies import Copies
from deepinfer.engine.request import FinishReason, Status
from deepinfer.engine.request import Sequence as Running
from deepinfer.errors import UsageError

Int64Array = npt.NDArray[np.int64]


UNBOUNDED = 2**30
"""A number of tokens that no sum of lengths reaches."""


@dataclass
class Plan:
    """The rows of one step: for sequence i rows starts[i]..stops[i]-1. Copies come first.

    samples [n] bool: the sequence's last row is the last known token, so its logits give the next.
    """

    sequences: list[Running]
    slots: Int64Array
    starts: Int64Array
    stops: Int64Array
    samples: npt.NDArray[np.bool_]
    copies: Copies

    @cached_property
    def all_draw(self) -> bool:
        """Does every sequence draw a token?"""
        return bool(self.samples.all())

    @cached_property
    def drawing(self) -> list[Running]:
        """The sequences that draw a token."""
        if self.all_draw:
            return self.sequences
        return [s for s, draws in zip(self.sequences, self.samples, strict=True) if draws]

    @cached_property
    def drawing_slots(self) -> Int64Array:
        """Slots of the sequences that draw a token."""
        return self.slots if self.all_draw else self.slots[self.samples]

    @cached_property
    def only_draws(self) -> bool:
        """Has every sequence one row, from which it draws?"""
        return self.all_draw and self.num_rows == len(self.sequences)

    @property
    def last_rows(self) -> Int64Array:
        """Number of each sequence's last row in the batch [n]."""
        return np.asarray(np.cumsum(self.stops - self.starts) - 1)

    @cached_property
    def num_rows(self) -> int:
        """Rows of the step."""
        return int((self.stops - self.starts).sum())


@dataclass(frozen=True)
class Limits:
    """Bounds of a step and rules of admission.

    max_num_seqs: running sequences. max_num_batched_tokens: rows of a step. chunked_prefill False
    computes every prompt in one step; a preempted sequence that has outgrown a step is recomputed
    in chunks all the same. stop_preempted_request: end a preempted sequence instead.
    max_sum_length: known tokens of all sequences beyond which none is admitted. lookahead_tokens:
    least rows of a piece of a prompt that is not its last. score_bytes: what index scores may
    take: rows of a step x context of the longest sequence x score_bytes_per_token.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool = True
    stop_preempted_request: bool = False
    max_sum_length: int = UNBOUNDED
    lookahead_tokens: int = 0
    score_bytes: int = 2**62
    score_bytes_per_token: float = 0.0

    def rows_for(self, context: int) -> int:
        """Rows of a step whose longest sequence has `context` tokens; at least 1."""
        if not self.score_bytes_per_token or context < 1:
            return self.max_num_batched_tokens
        fitting = int(self.score_bytes / (self.score_bytes_per_token * context))
        return max(1, min(self.max_num_batched_tokens, fitting))


@dataclass
class Scheduler:
    """Queues of sequences. `waiting` and `running` are in order of arrival.

    on_enter is called with every sequence that starts to run, on_preempt with every one that is
    about to lose its memory, its cache open.
    """

    cache: CacheManager
    limits: Limits
    waiting: list[Running] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    num_preempted: int = 0
    on_enter: Callable[[Running], None] = lambda sequence: None
    on_preempt: Callable[[Running], None] = lambda sequence: None

    def __post_init__(self) -> None:
        layout, capacity = self.cache.layout, self.cache.pages.capacity
        if layout.window_pages_for(1) > capacity:
            raise UsageError(
                f"one row needs {layout.window_pages_for(1)} window pages and the engine has "
                f"{capacity}; use a larger pool of pages"
            )
        # Rows of one sequence for which its pages suffice when it is alone.
        fitting = (
            (capacity - 1) * layout.page_tokens - layout.text.sliding_window - layout.backtrack
        )
        self._most_rows = min(self.limits.max_num_batched_tokens, fitting)
        self._slots: Int64Array = np.zeros(0, np.int64)
        self._known: Int64Array = np.zeros(len(self.cache.length), np.int64)
        self._rows: Int64Array = np.zeros(len(self.cache.length), np.int64)
        self._changed = True
        self._ended: list[Running] = []

    @property
    def most_rows(self) -> int:
        """Rows that one sequence may have in a step: by the limit and by the pool of pages."""
        return self._most_rows

    @property
    def has_work(self) -> bool:
        """Is any sequence waiting or running?"""
        return bool(self.waiting or self.running)

    def add(self, sequence: Running) -> None:
        """Queue a sequence behind all earlier arrivals."""
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_arrival)

    def can_enter(self) -> bool:
        """Is there a place and a slot for one more running sequence?"""
        return len(self.running) < self.limits.max_num_seqs and self.cache.slots.can_allocate(1)

    def enter(self, sequence: Running) -> None:
        """Take a sequence that has its cache into `running`."""
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=_arrival)
        self._known[_slot(sequence)] = sequence.known
        self._rows[_slot(sequence)] = 0
        self._changed = True
        self.on_enter(sequence)

    def take_ended(self) -> list[Running]:
        """Sequences that were ended because no memory is left for them even alone."""
        ended, self._ended = self._ended, []
        return ended

    def advanced(self, slots: Int64Array) -> None:
        """The sequences in these slots got one token each."""
        self._known[slots] += 1

    def schedule(self) -> Plan | None:
        """The next step, with its memory reserved; None when nothing runs.

        When nothing runs although something waits, the first that waits has been ended:
        `take_ended` has it.
        """
        preempted = self.num_preempted
        self._share_rows()
        copies = self._make_room()
        if self.num_preempted == preempted:  # else it would come back at once, to be taken again
            self._admit()
        slots, rows = self._active()
        if not len(slots):
            assert not self.running, "running sequences without a row: no step would end this"
            if self.waiting and not self._ended:
                self._end(self.waiting.pop(0))
            return None
        starts = self.cache.length[slots]
        stops = starts + rows
        sequences = list(self.running)
        if len(slots) < len(sequences):
            chosen = np.flatnonzero(self._rows[self._running_slots()])
            sequences = [sequences[place] for place in chosen.tolist()]
        return Plan(sequences, slots, starts, stops, stops == self._known[slots], copies)

    def release(self, sequences: Iterable[Running]) -> None:
        """Take back the memory of finished sequences, wherever they are queued."""
        queued = False
        for sequence in sequences:
            if sequence.cache is None:
                queued = True
                continue
            sequence.leave()
            self.cache.close(sequence.cache)
            sequence.cache = None
            self._changed = True
        if self._changed:
            self.running = [s for s in self.running if s.status is Status.RUNNING]
        if queued:
            self.waiting = [s for s in self.waiting if s.status is Status.WAITING]

    def _running_slots(self) -> Int64Array:
        if self._changed:
            self._slots = np.array([_slot(s) for s in self.running], np.int64)
            self._changed = False
        return self._slots

    def _active(self) -> tuple[Int64Array, Int64Array]:
        """Slots and rows of the running sequences that have any in this step."""
        slots = self._running_slots()
        rows = self._rows[slots]
        if rows.all():
            return slots, rows
        chosen = rows > 0
        return slots[chosen], rows[chosen]

    def _planned_rows(self) -> int:
        return int(self._rows[self._running_slots()].sum())

    def _share_rows(self) -> None:
        """Rows of each running sequence within the token budget, earliest arrival first."""
        slots = self._running_slots()
        if not len(slots):
            return
        known = self._known[slots]
        missing = known - self.cache.length[slots]
        budget = self.limits.rows_for(int(known.max()))
        if len(slots) <= budget and int(missing.max()) == 1:  # all decode: none has less
            self._rows[slots] = 1
            return
        wanted = np.minimum(missing, min(self._most_rows, budget))
        before = np.cumsum(wanted) - wanted
        rows = np.clip(budget - before, 0, wanted)
        least = self.limits.lookahead_tokens if self.limits.chunked_prefill else UNBOUNDED
        rows[rows < np.minimum(wanted, least)] = 0
        self._rows[slots] = rows

    def _make_room(self) -> Copies:
        """Reserve memory for the rows, preempting the latest arrivals as long as it is short.

        Returns the copies that give their sequences blocks of their own where they write.
        """
        while True:
            slots, rows = self._active()
            stops = self.cache.length[slots] + rows
            if self.cache.try_reserve_rows(slots, stops):
                return self.cache.writable(slots, stops)
            self._preempt()

    def _preempt(self) -> None:
        """Take the latest arrival's memory back; it waits, or ends where that cannot help."""
        alone = len(self.running) == 1
        sequence = self.running.pop()
        assert sequence.cache is not None
        sequence.leave()
        self.num_preempted += 1
        sequence.preemptions += 1
        self.on_preempt(sequence)
        if alone or self.limits.stop_preempted_request:
            self._end(sequence)
        self.cache.close(sequence.cache)
        sequence.cache = None
        self._changed = True
        if sequence.status is not Status.FINISHED:
            self.add(sequence)

    def _end(self, sequence: Running) -> None:
        """Finish a sequence for which there is no memory."""
        blocks, pages, slots = self.cache.blocks, self.cache.pages, self.cache.slots
        need = self.cache.layout.blocks_for(sequence.known)
        page_need = self.cache.layout.window_pages_for(1)
        sequence.error = (
            f"no memory for {sequence.known} tokens: they need {need} context blocks, from "
            f"{page_need} window pages up and a slot; the engine has {blocks.capacity} blocks, "
            f"{pages.capacity} window pages and {slots.capacity} sequence slots, of which "
            f"{blocks.num_free}, {pages.num_free} and {slots.num_free} are free. Send fewer or "
            "shorter requests, or raise num_blocks"
        )
        sequence.finish(FinishReason.NO_RESOURCES)
        self._ended.append(sequence)

    def _admit(self) -> None:
        """Admit waiting sequences in order of arrival; the first that does not fit stops the loop,
        so that none is overtaken."""
        if not self.waiting:
            return
        slots = self._running_slots()
        known = self._known[slots]
        total, longest = int(known.sum()), int(known.max(initial=0))
        planned = self._planned_rows()
        promised = int(self.cache.needed_rows(slots, known)[0])
        admitted = 0
        for sequence in self.waiting:
            longest = max(longest, sequence.known)
            most = self.limits.rows_for(longest)
            rows = self._first_rows(sequence, most, most - planned)
            if rows < 1:
                break
            total += sequence.known
            if self.running and total > self.limits.max_sum_length:
                break
            blocks = self.cache.layout.blocks_for(sequence.known)
            if not self.cache.blocks.can_allocate(promised + blocks):
                break
            if not (self.can_enter() and self._open(sequence, rows)):
                break
            promised += blocks - self.cache.layout.blocks_for(rows)
            planned += rows
            admitted += 1
        del self.waiting[:admitted]

    def _first_rows(self, sequence: Running, most: int, budget: int) -> int:
        """Rows that a waiting sequence may have in a step of `most` rows, `budget` of them free."""
        wanted = min(sequence.known, self._most_rows, most)
        rows = min(wanted, budget)
        least = self.limits.lookahead_tokens if self.limits.chunked_prefill else UNBOUNDED
        return 0 if rows < min(wanted, least) else rows

    def _open(self, sequence: Running, rows: int) -> bool:
        cache = self.cache.open()
        if not self.cache.can_reserve(cache, rows):
            self.cache.close(cache)
            return False
        self.cache.reserve(cache, rows)
        sequence.cache = cache
        self.enter(sequence)
        self._rows[cache.slot] = rows
        return True


def _slot(sequence: Running) -> int:
    assert sequence.cache is not None
    return sequence.cache.slot


def _arrival(sequence: Running) -> tuple[int, int]:
    return sequence.request.number, sequence.index
