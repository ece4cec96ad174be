"""Forked sequences share blocks and pages until one of them writes; copies are counted before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from deepinfer.cache import (
    BlockAllocator,
    CacheLayout,
    CacheManager,
    OutOfBlocksError,
    SequenceCache,
)
from deepinfer.cache.copies import Copies
from deepinfer_reference.backend import ReferenceBackend
from tests.cache.layouts import small_layout

BLOCK, PAGE = 16, 4


def manager_of(blocks: int = 64, pages: int = 64, slots: int = 6) -> CacheManager:
    return CacheManager(small_layout(0, 2, 1), blocks, pages, slots)


def columns(*parts: tuple[SequenceCache, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([cache.slot for cache, _ in parts]), np.array([stop for _, stop in parts])


def write(manager: CacheManager, *parts: tuple[SequenceCache, int]) -> Copies:
    """Reserve, copy and commit a step that takes each sequence up to a length."""
    slots, stops = columns(*parts)
    assert manager.can_reserve_rows(slots, stops)
    manager.reserve_rows(slots, stops)
    copies = manager.writable(slots, stops)
    manager.commit_rows(slots, stops)
    return copies


def started(manager: CacheManager, length: int) -> SequenceCache:
    cache = manager.open()
    if length:
        write(manager, (cache, length))
    return cache


def test_number_of_shared_blocks() -> None:
    pool = BlockAllocator(6, "blocks")
    first, second = pool.allocate(2)
    assert pool.num_shared == 0
    pool.share([first])
    assert (pool.num_shared, pool.num_owners(first), pool.num_owners(second)) == (1, 2, 1)
    pool.share([first, second])
    assert (pool.num_shared, pool.num_owners(first)) == (2, 3)
    pool.free([first])
    assert pool.num_shared == 2
    pool.free([first, second])
    assert pool.num_shared == 0
    assert not pool.is_shared(first)


def test_number_of_shared_blocks_in_random_use() -> None:
    choose = random.Random(0)
    pool = BlockAllocator(6, "blocks")
    owners: dict[int, int] = {}
    for _ in range(1000):
        block = choose.randint(1, 5)
        if not owners.get(block):
            (block,) = pool.allocate(1) if pool.num_free else (block,)
            owners[block] = owners.get(block, 0) + 1
        elif choose.random() < 0.5:
            pool.share([block])
            owners[block] += 1
        else:
            pool.free([block])
            owners[block] -= 1
        assert pool.num_shared == sum(count > 1 for count in owners.values())


def test_a_fork_takes_a_slot_and_nothing_else() -> None:
    manager = manager_of()
    first = started(manager, 21)
    used = manager.blocks.num_used, manager.pages.num_used
    second = manager.fork(first)
    assert (manager.blocks.num_used, manager.pages.num_used) == used
    assert manager.slots.num_used == 2
    assert second.slot != first.slot
    assert (second.blocks, second.pages) == (first.blocks, first.pages)
    assert (second.length, second.first_page) == (first.length, first.first_page)


@pytest.mark.parametrize("length", range(1, 2 * BLOCK + 2))
def test_the_first_write_copies_what_it_writes_into(length: int) -> None:
    """At every offset: the block and the page of the next row, where they are begun."""
    manager = manager_of()
    first = started(manager, length)
    second = manager.fork(first)
    old_blocks, old_pages = first.blocks, first.pages
    copies = write(manager, (second, length + 1))
    begun_block, begun_page = length % BLOCK > 0, length % PAGE > 0
    assert [pair[0] for pair in copies.blocks] == old_blocks[-1:] * begun_block
    assert [pair[0] for pair in copies.pages] == old_pages[-1:] * begun_page
    assert copies.slots == [(first.slot, second.slot)]
    assert (first.blocks, first.length) == (old_blocks, length)
    assert second.blocks[: length // BLOCK] == old_blocks[: length // BLOCK]
    if begun_block:
        assert copies.blocks == [(old_blocks[-1], second.blocks[-1])]
    after = write(manager, (first, length + 1), (second, length + 2))
    fresh = [to for _, to in copies.blocks]
    assert not {source for source, _ in after.blocks} & set(fresh), "a copy is copied again"
    assert not set(first.blocks[length // BLOCK :]) & set(second.blocks[length // BLOCK :])
    manager.close(first)
    manager.close(second)
    assert manager.blocks.num_used == manager.pages.num_used == manager.blocks.num_shared == 0


def test_the_last_owner_writes_without_a_copy() -> None:
    manager = manager_of()
    first = started(manager, 21)
    second = manager.fork(first)
    write(manager, (second, 22))
    assert not write(manager, (first, 22))


def test_of_all_owners_in_one_step_one_keeps_the_block() -> None:
    manager = manager_of()
    first = started(manager, 21)
    caches = [first, manager.fork(first), manager.fork(first)]
    copies = write(manager, *((cache, 22) for cache in caches))
    assert (len(copies.blocks), len(copies.pages), len(copies.slots)) == (2, 2, 2)
    assert len({cache.blocks[-1] for cache in caches}) == 3
    assert len({cache.blocks[0] for cache in caches}) == 1


@pytest.mark.parametrize(("free", "fits"), [(1, False), (2, True)])
def test_copies_need_room(free: int, fits: bool) -> None:
    """Three owners write: two copies of a block, and no more."""
    manager = manager_of(blocks=2 + free)
    first = started(manager, 21)
    caches = [first, manager.fork(first), manager.fork(first)]
    slots, stops = columns(*((cache, 22) for cache in caches))
    assert manager.can_reserve_rows(slots, stops) == fits
    if not fits:
        manager.reserve_rows(slots, stops)
        tables = manager.block_table.copy(), manager.page_table.copy()
        with pytest.raises(OutOfBlocksError, match="2 shared context blocks and 2 shared window"):
            manager.writable(slots, stops)
        assert (manager.block_table == tables[0]).all()
        assert (manager.page_table == tables[1]).all()
        assert manager.has_pending_copies


def test_a_closed_fork_needs_no_copy() -> None:
    manager = manager_of()
    first = started(manager, 21)
    second = manager.fork(first)
    manager.close(second)
    assert not manager.has_pending_copies
    assert manager.blocks.num_shared == manager.pages.num_shared == 0
    assert not write(manager, (first, 22))


def test_a_fork_outlives_its_source() -> None:
    manager = manager_of()
    first = started(manager, 21)
    second, slot = manager.fork(first), first.slot
    manager.close(first)
    assert write(manager, (second, 22)) == Copies([], [], [(slot, second.slot)])


def test_a_fork_of_a_fork_copies_the_slot_of_the_first() -> None:
    manager = manager_of()
    first = started(manager, 5)
    second = manager.fork(first)
    third = manager.fork(second)
    copies = write(manager, (third, 6))
    assert copies.slots == [(first.slot, second.slot), (first.slot, third.slot)]


def test_tables_bound_a_sequence() -> None:
    manager = CacheManager(small_layout(0, 2, 1), 64, 64, 2, max_tokens=32, max_rows=4)
    cache = manager.open()
    with pytest.raises(ValueError, match=r"33 tokens need 3 context blocks .* its table holds 2"):
        manager.reserve(cache, 33)
    with pytest.raises(ValueError, match=r"21 tokens need 6 window pages .* its table holds"):
        manager.reserve(cache, 21)
    assert manager.blocks.num_used == manager.pages.num_used == 0
    for length in range(4, 33, 4):
        write(manager, (cache, length))
    assert cache.length == 32


def test_pools_carry_copies_out() -> None:
    layout: CacheLayout = small_layout(0, 2, 1)
    manager = CacheManager(layout, 5, 7, 3)
    pools = manager.pools(torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(0)
    for pool in (pools.context, pools.window):
        pool.data.random_(0, 256, generator=generator)
    state = pools.compressor(1)
    assert state is not None
    state.members.normal_(generator=generator)
    before = pools.context.data.clone(), pools.window.data.clone(), state.members.clone()
    pools.copy(ReferenceBackend("cpu"), Copies([(1, 4), (1, 2)], [(3, 7)], [(2, 1), (2, 3)]))
    for data, old, pairs in (
        (pools.context.data, before[0], {4: 1, 2: 1}),
        (pools.window.data, before[1], {7: 3}),
        (state.members, before[2], {1: 2, 3: 2}),
    ):
        for place in range(len(data)):
            assert torch.equal(data[place], old[pairs.get(place, place)]), place


@pytest.mark.slow
def test_random_forks_against_contents() -> None:
    """What every sequence wrote, kept by token, is what it reads through its tables."""
    choose = random.Random(3)
    manager = manager_of(blocks=40, pages=60, slots=6)
    memory = np.full((41, BLOCK), -1)
    near = np.full((61, PAGE), -1)
    texts: dict[int, tuple[SequenceCache, list[int]]] = {}
    for turn in range(800):
        if len(texts) < 6 and choose.random() < 0.3:
            if texts and choose.random() < 0.7:
                source, text = choose.choice(list(texts.values()))
                cache, text = manager.fork(source), list(text)
            else:
                cache, text = manager.open(), []
            texts[cache.slot] = cache, text
        picked = choose.sample(list(texts.values()), choose.randint(0, len(texts)))
        steps = [(cache, len(text) + choose.randint(1, 7)) for cache, text in picked]
        if steps and manager.can_reserve_rows(*columns(*steps)):
            slots, stops = columns(*steps)
            manager.reserve_rows(slots, stops)
            copies = manager.writable(slots, stops)
            for memory_of, pairs in ((memory, copies.blocks), (near, copies.pages)):
                for source_number, to in pairs:
                    memory_of[to] = memory_of[source_number]
            for (cache, text), (_, stop) in zip(picked, steps, strict=True):
                for position in range(len(text), stop):
                    text.append(turn * 10 + cache.slot)
                    memory[cache.blocks[position // BLOCK], position % BLOCK] = text[-1]
                    page = cache.pages[position // PAGE - cache.first_page]
                    near[page, position % PAGE] = text[-1]
            manager.commit_rows(slots, stops)
        for cache, text in texts.values():
            read = [int(memory[cache.blocks[p // BLOCK], p % BLOCK]) for p in range(len(text))]
            assert read == text
            seen = range(max(0, len(text) - 7), len(text))
            pages = [cache.pages[p // PAGE - cache.first_page] for p in seen]
            assert [int(near[page, p % PAGE]) for page, p in zip(pages, seen, strict=True)] == [
                text[p] for p in seen
            ]
        for slot in [
            s for s, (_, text) in texts.items() if len(text) > 70 or choose.random() < 0.03
        ]:
            manager.close(texts.pop(slot)[0])
    for cache, _ in texts.values():
        manager.close(cache)
    assert manager.blocks.num_used == manager.pages.num_used == manager.slots.num_used == 0
    assert manager.blocks.num_shared == manager.pages.num_shared == 0
