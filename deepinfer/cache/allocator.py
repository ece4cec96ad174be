"""`BlockAllocator`: which blocks of a pool are free, and who shares the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from deepinfer.errors import DeepInferError


class OutOfBlocksError(DeepInferError):
    """A pool has fewer free blocks than were asked for."""


class BlockAllocator:
    """Reference-counted block numbers 1..num_blocks-1; block 0 is the dummy and never handed out.

    Freed blocks are handed out again in the order in which they were freed. num_shared counts the
    blocks with more than one owner.
    """

    def __init__(self, num_blocks: int, name: str) -> None:
        if num_blocks < 2:
            raise ValueError(f"{name}: a pool needs at least 2 blocks, got {num_blocks}")
        self.name = name
        self._free = deque(range(1, num_blocks))
        self._references = [0] * num_blocks
        self.num_shared = 0

    @property
    def capacity(self) -> int:
        """Blocks that can ever be handed out at the same time."""
        return len(self._references) - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one owner."""
        return self.capacity - len(self._free)

    def can_allocate(self, count: int) -> bool:
        """Would `allocate(count)` succeed?"""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one owner; all or none."""
        if not self.can_allocate(count):
            raise OutOfBlocksError(
                f"{self.name}: {count} blocks asked for, {len(self._free)} free of "
                f"{self.capacity}; use fewer or shorter sequences, or a larger pool"
            )
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block."""
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"{self.name}: block {block} is free and cannot be shared")
            self._references[block] += 1
            self.num_shared += self._references[block] == 2

    def num_owners(self, block: int) -> int:
        """Owners of the block, 0 when it is free."""
        return self._references[block]

    def is_shared(self, block: int) -> bool:
        """Has the block more than one owner?"""
        return self._references[block] > 1

    def free(self, blocks: Iterable[int]) -> None:
        """Remove an owner from each block; a block without owners becomes free."""
        for block in blocks:
            if self._references[block] == 0:
                raise ValueError(f"{self.name}: block {block} is freed twice")
            self._references[block] -= 1
            self.num_shared -= self._references[block] == 1
            if self._references[block] == 0:
                self._free.append(block)
