"""`SequenceCache`: the blocks, pages and slot of one running sequence; `CacheManager` lends them.

A prompt chunk, a decode row and a rollback are the same thing here: `reserve` before a step makes
room for positions, `commit` after it frees the window pages that no later row can see.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from deepinfer.cache.allocator import BlockAllocator, OutOfBlocksError
from deepinfer.cache.layout import CacheLayout
from deepinfer.cache.pools import CachePools


@dataclass
class SequenceCache:
    """What one sequence holds. length: committed tokens. first_page: number of pages[0]."""

    slot: int
    blocks: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    first_page: int = 0
    length: int = 0


class CacheManager:
    """Lends cache memory to sequences and takes it back; host side only, no tensors are touched."""

    def __init__(
        self,
        layout: CacheLayout,
        num_blocks: int,
        num_pages: int,
        num_slots: int,
    ) -> None:
        self.layout = layout
        self.blocks = BlockAllocator(max(num_blocks, 1) + 1, "context blocks")
        self.pages = BlockAllocator(num_pages + 1, "window pages")
        self.slots = BlockAllocator(num_slots + 1, "sequence slots")

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
        return SequenceCache(self.slots.allocate(1)[0])

    def needed(self, cache: SequenceCache, length: int) -> tuple[int, int]:
        """(blocks, pages) that `reserve(cache, length)` would allocate."""
        blocks = self.layout.blocks_for(length) - len(cache.blocks)
        pages = -(-length // self.layout.page_tokens) - cache.first_page - len(cache.pages)
        return max(blocks, 0), max(pages, 0)

    def can_reserve(self, cache: SequenceCache, length: int) -> bool:
        """Is there room for the sequence's positions below `length`?"""
        blocks, pages = self.needed(cache, length)
        return self.blocks.can_allocate(blocks) and self.pages.can_allocate(pages)

    def reserve(self, cache: SequenceCache, length: int) -> None:
        """Make room for positions below `length`; all or nothing, else OutOfBlocksError.

        ValueError when pages that the row at `cache.length` sees were freed already: a sequence is
        taken back by not committing rows, never by lowering `length` under what was committed.
        """
        if self._first_seen_page(cache.length) < cache.first_page:
            raise ValueError(
                f"the row at position {cache.length} sees page "
                f"{self._first_seen_page(cache.length)}, but pages before {cache.first_page} "
                "were freed; commit only what is final"
            )
        blocks, pages = self.needed(cache, length)
        if not self.can_reserve(cache, length):
            raise OutOfBlocksError(
                f"{length} tokens need {blocks} more context blocks and {pages} more window "
                f"pages; free: {self.blocks.num_free} and {self.pages.num_free}"
            )
        cache.blocks += self.blocks.allocate(blocks)
        cache.pages += self.pages.allocate(pages)

    def commit(self, cache: SequenceCache, length: int) -> None:
        """Declare `length` tokens final and free the pages that lie before their window.

        A page goes when its last position is below length - (window - 1): the next row, at
        position `length`, sees back to length - window + 1. ValueError for fewer tokens than are
        final already, or for more than there was room made for.
        """
        room = (cache.first_page + len(cache.pages)) * self.layout.page_tokens
        if not cache.length <= length <= room:
            raise ValueError(
                f"{length} tokens cannot be committed; allowed: from {cache.length}, which are "
                f"final, to {room}, for which pages are reserved"
            )
        cache.length = length
        gone = self._first_seen_page(length) - cache.first_page
        if gone > 0:
            self.pages.free(cache.pages[:gone])
            del cache.pages[:gone]
            cache.first_page += gone

    def _first_seen_page(self, position: int) -> int:
        """Number of the first page that the row at `position` sees."""
        first_seen = max(0, position - (self.layout.text.sliding_window - 1))
        return first_seen // self.layout.page_tokens

    def close(self, cache: SequenceCache) -> None:
        """Take everything back; the sequence may not be used afterwards."""
        self.blocks.free(cache.blocks)
        self.pages.free(cache.pages)
        self.slots.free([cache.slot])
        cache.blocks, cache.pages = [], []
