"""`Copies`: the blocks, pages and slots to copy before a step, so that no writer shares memory."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from deepinfer.arrays import Int64Array
from deepinfer.cache.allocator import BlockAllocator


class Copies(NamedTuple):
    """Copies that a step needs before it runs: (from, to) numbers of blocks, pages and slots."""

    blocks: list[tuple[int, int]]
    pages: list[tuple[int, int]]
    slots: list[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.blocks or self.pages or self.slots)


def num_copies(places: list[tuple[int, int]], allocator: BlockAllocator, table: Int64Array) -> int:
    """How many copies `replace_shared` will make.

    One for each writer, less one where every owner of a block writes into it.
    """
    writers = Counter(int(table[place]) for place in places)
    return sum(min(count, allocator.num_owners(block) - 1) for block, count in writers.items())


def replace_shared(
    places: list[tuple[int, int]], allocator: BlockAllocator, table: Int64Array
) -> list[tuple[int, int]]:
    """Put new blocks in places (slot, column) of a table; (from, to) of each copy to make."""
    pairs = []
    for slot, column in places:
        old = int(table[slot, column])
        if not allocator.is_shared(old):
            continue  # another sequence of this step has left it to us
        new = allocator.allocate(1)[0]
        pairs.append((old, new))
        table[slot, column] = new
        allocator.free([old])
    return pairs
