"""`CacheManager`: who holds which blocks, pages and slots; `SequenceCache`: one sequence's share.

A prompt chunk, a decode row and a rollback are the same thing here: `reserve` before a step makes
room for positions, `commit` after it frees the window pages that no later row can see. What a step
reads of every sequence stands in numpy columns indexed by slot, so that a step of many sequences
costs a few array operations; lists of blocks exist only in errors and tests.
"""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.arrays import Int64Array
from deepinfer.cache.allocator import BlockAllocator, OutOfBlocksError
from deepinfer.cache.copies import Copies, num_copies, replace_shared
from deepinfer.cache.layout import CacheLayout
from deepinfer.cache.pools import CachePools

NO_PAIRS: list[tuple[int, int]] = []


class SequenceCache:
    """The share of one running sequence: a view of the manager's columns at `slot`."""

    __slots__ = ("_manager", "slot")

    def __init__(self, manager: CacheManager, slot: int) -> None:
        self._manager = manager
        self.slot = slot

    @property
    def length(self) -> int:
        """Committed tokens."""
        return int(self._manager.length[self.slot])

    @property
    def blocks(self) -> list[int]:
        """Context blocks, in order."""
        count = int(self._manager.num_blocks[self.slot])
        return [int(block) for block in self._manager.block_table[self.slot, :count]]

    @property
    def pages(self) -> list[int]:
        """Window pages, in order; the first one has number `first_page`."""
        count = int(self._manager.num_pages[self.slot])
        return [int(page) for page in self._manager.page_table[self.slot, :count]]

    @property
    def first_page(self) -> int:
        """Number of the first kept page."""
        return int(self._manager.first_page[self.slot])


class CacheManager:
    """Lends cache memory to sequences and takes it back; host side only, no tensors are touched.

    Columns by slot (number 0 is the dummy): length, num_blocks, num_pages, first_page [S] int64;
    block_table [S, max_blocks], page_table [S, max_pages] int64, unused places 0. max_tokens bounds
    a sequence, max_rows the rows of one sequence in one step.
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_blocks: int,
        num_pages: int,
        num_slots: int,
        *,
        max_tokens: int | None = None,
        max_rows: int | None = None,
    ) -> None:
        self.layout = layout
        self.blocks = BlockAllocator(max(num_blocks, 1) + 1, "context blocks")
        self.pages = BlockAllocator(num_pages + 1, "window pages")
        self.slots = BlockAllocator(num_slots + 1, "sequence slots")
        columns = num_slots + 1
        widest = num_blocks if max_tokens is None else layout.blocks_for(max_tokens)
        pages = num_pages if max_rows is None else layout.window_pages_for(max_rows)
        self.length: Int64Array = np.zeros(columns, np.int64)
        self.num_blocks: Int64Array = np.zeros(columns, np.int64)
        self.num_pages: Int64Array = np.zeros(columns, np.int64)
        self.first_page: Int64Array = np.zeros(columns, np.int64)
        self.block_table: Int64Array = np.zeros((columns, max(widest, 1)), np.int64)
        self.page_table: Int64Array = np.zeros((columns, max(pages, 1)), np.int64)
        self._slot_copies: list[tuple[int, int]] = []

    def pools(self, device: torch.device, state_dtype: torch.dtype) -> CachePools:
        """The tensors that this manager's numbers address."""
        return CachePools(
            self.layout,
            self.blocks.capacity,
            self.pages.capacity,
            self.slots.capacity,
            device,
            state_dtype,
        )

    def open(self) -> SequenceCache:
        """A new sequence with a slot and nothing else."""
        return SequenceCache(self, self.slots.allocate(1)[0])

    def close(self, cache: SequenceCache) -> None:
        """Take everything back; the sequence may not be used afterwards."""
        slot = cache.slot
        self.blocks.free(cache.blocks)
        self.pages.free(cache.pages)
        for column in (self.length, self.num_blocks, self.num_pages, self.first_page):
            column[slot] = 0
        self.block_table[slot] = 0
        self.page_table[slot] = 0
        self._slot_copies = [pair for pair in self._slot_copies if pair[1] != slot]
        self.slots.free([slot])

    def fork(self, cache: SequenceCache) -> SequenceCache:
        """A sequence that shares everything with another one; its slot is copied before the next
        step (see `writable`), shared blocks when one of the two writes into them."""
        other = self.open()
        self.blocks.share(cache.blocks)
        self.pages.share(cache.pages)
        for column in (
            self.length,
            self.num_blocks,
            self.num_pages,
            self.first_page,
            self.block_table,
            self.page_table,
        ):
            column[other.slot] = column[cache.slot]
        source = {to: from_ for from_, to in self._slot_copies}.get(cache.slot, cache.slot)
        self._slot_copies.append((source, other.slot))
        return other

    @property
    def has_pending_copies(self) -> bool:
        """Is there a fork whose slot was not copied yet?"""
        return bool(self._slot_copies)

    def needed(self, cache: SequenceCache, length: int) -> tuple[int, int]:
        """`needed_rows` of one sequence."""
        return self.needed_rows(*_one(cache, length))

    def can_reserve(self, cache: SequenceCache, length: int) -> bool:
        """`can_reserve_rows` of one sequence."""
        return self.can_reserve_rows(*_one(cache, length))

    def reserve(self, cache: SequenceCache, length: int) -> None:
        """`reserve_rows` of one sequence."""
        self.reserve_rows(*_one(cache, length))

    def commit(self, cache: SequenceCache, length: int) -> None:
        """`commit_rows` of one sequence."""
        self.commit_rows(*_one(cache, length))

    def needed_rows(self, slots: Int64Array, stops: Int64Array) -> tuple[int, int]:
        """(blocks, pages) that `reserve` of these slots and lengths would allocate."""
        blocks, pages = self._growth(slots, stops)
        return int(blocks.sum()), int(pages.sum())

    def can_reserve_rows(self, slots: Int64Array, stops: Int64Array) -> bool:
        """Is there room for the positions below `stops`, copies on write included?"""
        return self._fit(slots, stops, *self.needed_rows(slots, stops))

    def try_reserve_rows(self, slots: Int64Array, stops: Int64Array) -> bool:
        """Do `reserve_rows` if `can_reserve_rows`, with one check; whether it was done."""
        blocks, pages = self._growth(slots, stops)
        wanted = int(blocks.sum()), int(pages.sum())
        if not self._fit(slots, stops, *wanted):
            return False
        self._check_window(slots)
        if any(wanted):
            self._grow(slots, stops, blocks, pages)
        return True

    def _fit(self, slots: Int64Array, stops: Int64Array, blocks: int, pages: int) -> bool:
        """Whether so many blocks and pages are free, and those for copies on write."""
        if self.blocks.num_shared or self.pages.num_shared:
            written = self._shared(slots, stops)
            blocks += num_copies(written[0], self.blocks, self.block_table)
            pages += num_copies(written[1], self.pages, self.page_table)
        return self.blocks.can_allocate(blocks) and self.pages.can_allocate(pages)

    def reserve_rows(self, slots: Int64Array, stops: Int64Array) -> None:
        """Make room for positions below `stops` [n] of `slots` [n]; all or nothing.

        OutOfBlocksError when there is not enough; ValueError beyond `max_tokens` or `max_rows`, and
        when pages that the next row sees were freed already: take a sequence back by not
        committing rows.
        """
        self._check_window(slots)
        blocks, pages = self._growth(slots, stops)
        wanted = int(blocks.sum()), int(pages.sum())
        if not (self.blocks.can_allocate(wanted[0]) and self.pages.can_allocate(wanted[1])):
            raise OutOfBlocksError(
                f"{int(stops.max())} tokens need {wanted[0]} more context blocks and {wanted[1]} "
                f"more window pages; free: {self.blocks.num_free} and {self.pages.num_free}"
            )
        self._grow(slots, stops, blocks, pages)

    def _check_window(self, slots: Int64Array) -> None:
        """ValueError where pages that the next row sees were freed already."""
        lost = self._first_seen_page(self.length[slots]) < self.first_page[slots]
        if lost.any():
            slot = int(slots[lost][0])
            raise ValueError(
                f"the row at position {self.length[slot]} sees page "
                f"{self._first_seen_page(self.length[slot])}, but pages before "
                f"{self.first_page[slot]} were freed; commit only what is final"
            )

    def _grow(
        self, slots: Int64Array, stops: Int64Array, blocks: Int64Array, pages: Int64Array
    ) -> None:
        """Allocate so many blocks and pages more for each; ValueError beyond a table's width."""
        for name, table, used, more in (
            ("context blocks", self.block_table, self.num_blocks, blocks),
            ("window pages", self.page_table, self.num_pages, pages),
        ):
            widest = int((used[slots] + more).max(initial=0))
            if widest > table.shape[1]:
                raise ValueError(
                    f"{int(stops.max())} tokens need {widest} {name} of one sequence; its table "
                    f"holds {table.shape[1]}: use fewer tokens, or fewer rows in a step"
                )
        _extend(slots, blocks, self.blocks, self.block_table, self.num_blocks)
        _extend(slots, pages, self.pages, self.page_table, self.num_pages)

    def writable(self, slots: Int64Array, stops: Int64Array) -> Copies:
        """Give every sequence blocks of its own where the step will write; what must be copied.

        Call after `reserve`. Rows from `length` up to `stops` are written, so shared blocks and
        pages from there on are replaced by new ones with the old content. OutOfBlocksError when
        there is not enough for that; then nothing has changed.
        """
        if not (self.blocks.num_shared or self.pages.num_shared):
            pending, self._slot_copies = self._slot_copies, []
            return Copies(NO_PAIRS, NO_PAIRS, pending)
        blocks, pages = self._shared(slots, stops)
        wanted = (
            num_copies(blocks, self.blocks, self.block_table),
            num_copies(pages, self.pages, self.page_table),
        )
        if not (self.blocks.can_allocate(wanted[0]) and self.pages.can_allocate(wanted[1])):
            raise OutOfBlocksError(
                f"{wanted[0]} shared context blocks and {wanted[1]} shared window pages must be "
                f"copied before they are written; free: {self.blocks.num_free} and "
                f"{self.pages.num_free}"
            )
        pending, self._slot_copies = self._slot_copies, []
        return Copies(
            replace_shared(blocks, self.blocks, self.block_table),
            replace_shared(pages, self.pages, self.page_table),
            pending,
        )

    def commit_rows(self, slots: Int64Array, lengths: Int64Array) -> None:
        """Declare `lengths` [n] tokens of `slots` [n] final; free pages before their windows.

        A page goes when its last position is below length - (window - 1): the next row, at
        position `length`, sees back to length - window + 1. ValueError for fewer tokens than are
        final already, or for more than there was room made for.
        """
        room = (self.first_page[slots] + self.num_pages[slots]) * self.layout.page_tokens
        wrong = (lengths < self.length[slots]) | (lengths > room)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"{lengths[place]} tokens cannot be committed; allowed: from "
                f"{self.length[slots[place]]}, which are final, to {room[place]}, for which pages "
                "are reserved"
            )
        self.length[slots] = lengths
        gone = self._first_seen_page(lengths) - self.first_page[slots]
        if gone.max(initial=0) <= 0:
            return
        for count in np.unique(gone[gone > 0]).tolist():
            self._drop_pages(slots[gone == count], count)

    def _drop_pages(self, slots: Int64Array, gone: int) -> None:
        """Free the first `gone` pages of each of these slots."""
        rows = self.page_table[slots]
        self.pages.free(rows[:, :gone].ravel().tolist())
        self.page_table[slots, :-gone] = rows[:, gone:]
        self.page_table[slots, -gone:] = 0
        self.num_pages[slots] -= gone
        self.first_page[slots] += gone

    def _growth(self, slots: Int64Array, stops: Int64Array) -> tuple[Int64Array, Int64Array]:
        blocks = self.layout.blocks_needed(stops) - self.num_blocks[slots]
        pages = -(-stops // self.layout.page_tokens)
        pages = pages - self.first_page[slots] - self.num_pages[slots]
        return np.maximum(blocks, 0), np.maximum(pages, 0)

    def _shared(
        self, slots: Int64Array, stops: Int64Array
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(slot, column) of shared blocks and pages that rows length..stop-1 write into."""
        blocks: list[tuple[int, int]] = []
        pages: list[tuple[int, int]] = []
        for slot, stop in zip(slots.tolist(), stops.tolist(), strict=True):
            start = int(self.length[slot])
            if start >= stop:
                continue
            first = start // self.layout.block_tokens
            for column in range(first, int(self.num_blocks[slot])):
                if self.blocks.is_shared(int(self.block_table[slot, column])):
                    blocks.append((slot, column))
            first = start // self.layout.page_tokens - int(self.first_page[slot])
            for column in range(first, int(self.num_pages[slot])):
                if self.pages.is_shared(int(self.page_table[slot, column])):
                    pages.append((slot, column))
        return blocks, pages

    def _first_seen_page(self, positions: Int64Array) -> Int64Array:
        """Number of the first page that the row at each position sees."""
        first = np.maximum(positions - (self.layout.text.sliding_window - 1), 0)
        return np.asarray(first // self.layout.page_tokens)


def _one(cache: SequenceCache, length: int) -> tuple[Int64Array, Int64Array]:
    return np.array([cache.slot]), np.array([length])


def _extend(
    slots: Int64Array,
    counts: Int64Array,
    allocator: BlockAllocator,
    table: Int64Array,
    used: Int64Array,
) -> None:
    growing = np.flatnonzero(counts)
    if not len(growing):
        return
    slots, counts = slots[growing], counts[growing]
    blocks = np.array(allocator.allocate(int(counts.sum())), np.int64)
    before = np.cumsum(counts) - counts
    columns = np.arange(len(blocks)) - np.repeat(before - used[slots], counts)
    table[np.repeat(slots, counts), columns] = blocks
    used[slots] += counts
