"""Block numbers: who has them, in which order they come back, and what is refused."""

from __future__ import annotations

import random

import pytest

from deepinfer.cache import BlockAllocator, OutOfBlocksError
from deepinfer.errors import DeepInferError


def test_block_0_is_never_handed_out() -> None:
    pool = BlockAllocator(6, "blocks")
    assert pool.capacity == pool.num_free == 5
    assert pool.allocate(5) == [1, 2, 3, 4, 5]


def test_blocks_come_back_in_the_order_in_which_they_were_freed() -> None:
    pool = BlockAllocator(6, "blocks")
    pool.allocate(5)
    pool.free([4, 2])
    pool.free([5])
    assert pool.allocate(2) == [4, 2]
    pool.free([1])
    assert pool.allocate(2) == [5, 1]


def test_an_allocation_that_does_not_fit_takes_nothing() -> None:
    pool = BlockAllocator(4, "window pages")
    pool.allocate(1)
    assert pool.can_allocate(2)
    assert not pool.can_allocate(3)
    with pytest.raises(OutOfBlocksError, match="window pages: 3 blocks asked for, 2 free of 3"):
        pool.allocate(3)
    assert (pool.num_free, pool.num_used) == (2, 1)
    assert issubclass(OutOfBlocksError, DeepInferError)


def test_nothing_can_always_be_allocated() -> None:
    pool = BlockAllocator(2, "blocks")
    pool.allocate(1)
    assert pool.allocate(0) == []


def test_a_shared_block_is_free_when_its_last_owner_has_gone() -> None:
    pool = BlockAllocator(3, "blocks")
    blocks = pool.allocate(2)
    pool.share(blocks)
    pool.free(blocks)
    assert (pool.num_free, pool.num_used) == (0, 2)
    pool.free([2])
    assert (pool.num_free, pool.num_used) == (1, 1)
    assert pool.allocate(1) == [2]


def test_freeing_twice_is_refused() -> None:
    pool = BlockAllocator(4, "blocks")
    pool.allocate(2)
    pool.free([1])
    with pytest.raises(ValueError, match="blocks: block 1 is freed twice"):
        pool.free([1])
    assert pool.num_free == 2


@pytest.mark.parametrize("operation", ["free", "share"])
def test_block_0_has_no_owner(operation: str) -> None:
    pool = BlockAllocator(4, "blocks")
    with pytest.raises(ValueError, match="block 0"):
        getattr(pool, operation)([0])


def test_a_free_block_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="block 3 is free and cannot be shared"):
        BlockAllocator(4, "blocks").share([3])


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_pool_without_a_usable_block_is_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match=f"at least 2 blocks, got {blocks}"):
        BlockAllocator(blocks, "blocks")


def test_random_use_against_a_count_of_owners() -> None:
    choose = random.Random(0)
    pool = BlockAllocator(9, "blocks")
    owners = dict.fromkeys(range(1, 9), 0)
    for _ in range(2000):
        held = [block for block, count in owners.items() if count]
        match choose.choice(["allocate", "share", "free"]):
            case "allocate":
                count = choose.randint(0, 3)
                free = len(owners) - len(held)
                assert pool.can_allocate(count) == (count <= free)
                if count <= free:
                    for block in pool.allocate(count):
                        assert owners[block] == 0
                        owners[block] = 1
            case "share" if held:
                block = choose.choice(held)
                pool.share([block])
                owners[block] += 1
            case "free" if held:
                block = choose.choice(held)
                pool.free([block])
                owners[block] -= 1
        used = sum(count > 0 for count in owners.values())
        assert (pool.num_used, pool.num_free) == (used, 8 - used)
