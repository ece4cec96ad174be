"""`Scheduler`: decides which rows of which sequences the next step runs.

This is continuous batching. In order of arrival, every running sequence gets its next row, or the
next chunk of its prompt. Then waiting sequences are admitted while rows, slots and memory last.

When memory is short, the latest arrival is preempted: its memory is freed, and it is computed again
later from its prompt and the tokens it had generated. A sequence that runs alone and still does not
fit is ended. So every step makes progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from deepinfer.arrays import Int64Array
from deepinfer.cache import CacheManager
from deepinfer.cache.copies import Copies
from deepinfer.engine.admission import Admission, Limits
from deepinfer.engine.batch import Rows
from deepinfer.engine.request import FinishReason, Sequence, Status
from deepinfer.engine.sequence_table import SequenceTable


@dataclass(frozen=True)
class ScheduledStep:
    """A planned step.

    sequences: those that run. rows: their rows, in the same order. copies: copies of cache memory
    to make before the step runs.
    """

    sequences: list[Sequence]
    rows: Rows
    copies: Copies

    @cached_property
    def drawing(self) -> list[Sequence]:
        """The sequences that draw a token, in the order of `rows.drawing_slots`."""
        if self.rows.all_draw:
            return self.sequences
        return [s for s, draws in zip(self.sequences, self.rows.draws, strict=True) if draws]


@dataclass
class Scheduler:
    """The waiting and the running sequences of an engine, both in order of arrival.

    on_enter: called with a sequence that starts to run. on_preempt: called with a sequence that is
    about to be preempted, while it still has its cache.
    """

    cache: CacheManager
    admission: Admission
    table: SequenceTable
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    num_preempted: int = 0
    on_enter: Callable[[Sequence], None] = lambda sequence: None
    on_preempt: Callable[[Sequence], None] = lambda sequence: None

    def __post_init__(self) -> None:
        self._slots: Int64Array = np.zeros(0, np.int64)
        self._changed = True
        self._ended: list[Sequence] = []

    @property
    def limits(self) -> Limits:
        return self.admission.limits

    @property
    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its order of arrival."""
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_arrival)

    def can_enter(self) -> bool:
        """Whether max_num_seqs and the slots allow one more running sequence."""
        return len(self.running) < self.limits.max_num_seqs and self.cache.slots.can_allocate(1)

    def enter(self, sequence: Sequence) -> None:
        """Start to run a sequence that has its cache."""
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=_arrival)
        sequence.enter(self.table)
        self._changed = True
        self.on_enter(sequence)

    def take_ended(self) -> list[Sequence]:
        """The sequences that were ended since the last call, for want of memory."""
        ended, self._ended = self._ended, []
        return ended

    def schedule(self) -> ScheduledStep | None:
        """Plan the next step and reserve its memory; None when no sequence can run.

        When sequences wait and none can run, the first of them is ended; `take_ended` returns it.
        """
        preempted = self.num_preempted
        self._share_rows()
        copies = self._make_room()
        if self.num_preempted == preempted:  # else the preempted one would come back at once
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
            chosen = np.flatnonzero(self.table.rows[self._running_slots()])
            sequences = [sequences[place] for place in chosen.tolist()]
        draws = stops == self.table.known[slots]
        return ScheduledStep(sequences, Rows(slots, starts, stops, draws), copies)

    def release(self, sequences: Iterable[Sequence]) -> None:
        """Free the memory of finished sequences and remove them from the queues."""
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
            self._slots = np.array([s.slot for s in self.running], np.int64)
            self._changed = False
        return self._slots

    def _active(self) -> tuple[Int64Array, Int64Array]:
        """Slots and numbers of rows of the sequences that have rows in this step."""
        slots = self._running_slots()
        rows = self.table.rows[slots]
        if rows.all():
            return slots, rows
        chosen = rows > 0
        return slots[chosen], rows[chosen]

    def _planned_rows(self) -> int:
        return int(self.table.rows[self._running_slots()].sum())

    def _share_rows(self) -> None:
        """Give the running sequences their rows within the limit, earliest arrival first."""
        slots = self._running_slots()
        if not len(slots):
            return
        known = self.table.known[slots]
        missing = known - self.cache.length[slots]
        budget = self.limits.rows_for(int(known.max()))
        if len(slots) <= budget and int(missing.max()) == 1:  # all sequences decode: one row each
            self.table.rows[slots] = 1
            return
        wanted = np.minimum(missing, min(self.admission.most_rows, budget))
        before = np.cumsum(wanted) - wanted
        rows = np.clip(budget - before, 0, wanted)
        rows[rows < np.minimum(wanted, self.limits.least_rows)] = 0
        self.table.rows[slots] = rows

    def _make_room(self) -> Copies:
        """Reserve memory for the rows; preempt the latest arrivals while memory is short.

        Returns the copies to make first: a sequence that writes into a block which it shares gets a
        copy of its own.
        """
        while True:
            slots, rows = self._active()
            stops = self.cache.length[slots] + rows
            if self.cache.try_reserve_rows(slots, stops):
                return self.cache.writable(slots, stops)
            self._preempt()

    def _preempt(self) -> None:
        """Free the memory of the latest arrival; it waits again, or ends if it cannot go on."""
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

    def _end(self, sequence: Sequence) -> None:
        """End a sequence for which there is not enough memory."""
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
        """Admit waiting sequences in order of arrival, up to the first that does not fit.

        Those behind it wait too, so that no sequence overtakes an earlier one.
        """
        if not self.waiting:
            return
        slots = self._running_slots()
        known = self.table.known[slots]
        room = self.admission.step(
            known, self._planned_rows(), int(self.cache.needed_rows(slots, known)[0])
        )
        admitted = 0
        for sequence in self.waiting:
            rows = room.rows_for(sequence.known)
            if not (rows and self.can_enter() and self._open(sequence, rows)):
                break
            room.take(sequence.known, rows)
            admitted += 1
        del self.waiting[:admitted]

    def _open(self, sequence: Sequence, rows: int) -> bool:
        cache = self.cache.open()
        if not self.cache.can_reserve(cache, rows):
            self.cache.close(cache)
            return False
        self.cache.reserve(cache, rows)
        sequence.cache = cache
        self.enter(sequence)
        self.table.rows[cache.slot] = rows
        return True


def _arrival(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.number, sequence.index
