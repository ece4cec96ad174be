"""What sequences hold: reserve, commit and close, and when window pages are freed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from deepinfer.cache import CacheLayout, CacheManager, OutOfBlocksError, SequenceCache
from tests.cache.layouts import small_layout


def manager_of(
    layout: CacheLayout, blocks: int = 64, pages: int = 64, slots: int = 4
) -> CacheManager:
    return CacheManager(layout, blocks, pages, slots)


def held(manager: CacheManager) -> tuple[int, int, int]:
    """(blocks, pages, slots) in use."""
    return manager.blocks.num_used, manager.pages.num_used, manager.slots.num_used


def run(manager: CacheManager, cache: SequenceCache, length: int) -> None:
    manager.reserve(cache, length)
    manager.commit(cache, length)


def kept_pages(length: int, window: int, page: int) -> list[int]:
    """Numbers of the pages of `length` tokens that a later row sees, by looking at positions."""
    oldest = length - (window - 1)
    return [number for number in range(-(-length // page)) if (number + 1) * page - 1 >= oldest]


def test_a_new_sequence_has_a_slot_and_nothing_else() -> None:
    manager = manager_of(small_layout())
    first, second = manager.open(), manager.open()
    assert (first.slot, second.slot) == (1, 2)
    assert first.blocks == first.pages == []
    assert (first.length, first.first_page) == (0, 0)
    assert held(manager) == (0, 0, 2)


def test_there_are_only_so_many_slots() -> None:
    manager = manager_of(small_layout(), slots=1)
    manager.open()
    with pytest.raises(OutOfBlocksError, match="sequence slots: 1 blocks asked for, 0 free of 1"):
        manager.open()


def test_reserve_allocates_what_is_missing() -> None:
    manager = manager_of(small_layout())
    cache = manager.open()
    assert manager.needed(cache, 17) == (2, 5)
    manager.reserve(cache, 17)
    assert (len(cache.blocks), len(cache.pages)) == (2, 5)
    assert manager.needed(cache, 20) == (0, 0)
    assert manager.needed(cache, 21) == (0, 1)
    manager.reserve(cache, 5)  # less than there is
    assert held(manager) == (2, 5, 1)


def test_reserve_changes_no_length() -> None:
    manager = manager_of(small_layout())
    cache = manager.open()
    manager.reserve(cache, 17)
    assert (cache.length, cache.first_page) == (0, 0)


@pytest.mark.parametrize(("blocks", "pages"), [(1, 64), (64, 4), (64, 64)])
def test_trying_reserves_where_it_fits_and_takes_nothing_elsewhere(blocks: int, pages: int) -> None:
    manager = manager_of(small_layout(), blocks=blocks, pages=pages)
    cache = manager.open()
    slots = np.array([cache.slot])
    assert manager.try_reserve_rows(slots, np.array([16]))
    before = cache.blocks, cache.pages
    fits = manager.can_reserve(cache, 17)
    assert manager.try_reserve_rows(slots, np.array([17])) is fits is (blocks == pages)
    assert (len(cache.blocks), len(cache.pages)) == ((2, 5) if fits else (1, 4))
    assert fits or (cache.blocks, cache.pages) == before


@pytest.mark.parametrize(("blocks", "pages"), [(1, 64), (64, 4)])
def test_a_reservation_that_does_not_fit_takes_nothing(blocks: int, pages: int) -> None:
    manager = manager_of(small_layout(), blocks=blocks, pages=pages)
    cache = manager.open()
    assert manager.can_reserve(cache, 16)
    assert not manager.can_reserve(cache, 17)
    with pytest.raises(
        OutOfBlocksError,
        match=f"17 tokens need 2 more context blocks and 5 more window pages; free: {blocks} and",
    ):
        manager.reserve(cache, 17)
    assert held(manager) == (0, 0, 1)
    manager.reserve(cache, 16)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 7, 8, 9, 12, 13])
@pytest.mark.parametrize("page", [1, 3, 4])
def test_a_page_goes_exactly_when_no_later_row_sees_it(window: int, page: int) -> None:
    layout = small_layout(0, window=window, page_tokens=page)
    manager = manager_of(layout)
    cache = manager.open()
    numbers: dict[int, int] = {}
    for length in range(1, 40):
        manager.reserve(cache, length)
        for place, block in enumerate(cache.pages):
            assert numbers.setdefault(cache.first_page + place, block) == block
        manager.commit(cache, length)
        kept = kept_pages(length, window, page)
        assert [numbers[number] for number in kept] == cache.pages, f"at {length} tokens"
        if kept:
            assert cache.first_page == kept[0]
        assert manager.pages.num_used == len(kept)


@pytest.mark.parametrize(("length", "first_page"), [(10, 0), (11, 1), (14, 1), (15, 2)])
def test_page_edges_of_a_window_of_8(length: int, first_page: int) -> None:
    """Page 0 ends at position 3: it goes when 3 < length - 7."""
    manager = manager_of(small_layout(window=8, page_tokens=4))
    cache = manager.open()
    run(manager, cache, length)
    assert cache.first_page == first_page


@pytest.mark.slow
@pytest.mark.parametrize("backtrack", [1, 6])
@pytest.mark.parametrize(("window", "page"), [(8, 4), (9, 4), (1, 4), (32, 16), (7, 3)])
def test_bound_of_pages_holds_for_every_chunk_size(window: int, page: int, backtrack: int) -> None:
    """A pool of exactly the bound never runs out, whatever is refused of each step's drafts."""
    choose = random.Random(0)
    layout = small_layout(window=window, page_tokens=page, backtrack=backtrack)
    for rows in range(1, 41):
        bound = layout.window_pages_for(rows)
        manager = manager_of(layout, pages=bound)
        cache = manager.open()
        while cache.length < 150:
            refused = choose.randint(0, min(backtrack, rows) - 1)
            manager.reserve(cache, cache.length + rows)
            assert len(cache.pages) <= bound
            manager.commit(cache, cache.length + rows - refused)


def test_pages_of_refused_rows_are_kept_for_the_next_ones() -> None:
    manager = manager_of(small_layout(backtrack=6))
    cache = manager.open()
    manager.reserve(cache, 14)
    pages = list(cache.pages)
    manager.commit(cache, 9)
    assert cache.pages == pages
    manager.reserve(cache, 14)
    assert cache.pages == pages


def test_context_blocks_stay_until_the_end() -> None:
    manager = manager_of(small_layout())
    cache = manager.open()
    for length in range(1, 50):
        run(manager, cache, length)
        assert len(cache.blocks) == -(-length // 16)


def test_a_model_without_compressed_layers_takes_no_blocks() -> None:
    manager = manager_of(small_layout(0, 0), blocks=0)
    cache = manager.open()
    run(manager, cache, 40)
    assert held(manager) == (0, len(cache.pages), 1)


def test_close_gives_everything_back() -> None:
    manager = manager_of(small_layout())
    first, second = manager.open(), manager.open()
    run(manager, first, 30)
    manager.reserve(second, 21)
    manager.close(first)
    assert held(manager) == (2, 6, 1)
    manager.close(second)
    assert held(manager) == (0, 0, 0)


def test_closing_twice_is_refused() -> None:
    manager = manager_of(small_layout())
    cache = manager.open()
    manager.close(cache)
    with pytest.raises(ValueError, match="sequence slots: block 1 is freed twice"):
        manager.close(cache)


@pytest.mark.parametrize("length", [5, 13])
def test_commit_outside_what_is_final_and_reserved(length: int) -> None:
    manager = manager_of(small_layout())
    cache = manager.open()
    run(manager, cache, 6)
    manager.reserve(cache, 12)
    with pytest.raises(ValueError, match=f"{length} tokens cannot be committed; allowed: from 6"):
        manager.commit(cache, length)
    assert cache.length == 6


def test_random_sequences_never_share_and_never_leak() -> None:
    choose = random.Random(1)
    manager = manager_of(small_layout(0, 2, 1), blocks=14, pages=30, slots=5)
    running: list[SequenceCache] = []
    for _ in range(600):
        if len(running) < 5 and choose.random() < 0.2:
            running.append(manager.open())
        for cache in running:
            length = cache.length + choose.randint(1, 9)
            if manager.can_reserve(cache, length):
                run(manager, cache, length)
        if running and (choose.random() < 0.2 or max(c.length for c in running) > 80):
            manager.close(running.pop(choose.randrange(len(running))))
        for owned, pool in (
            ([block for cache in running for block in cache.blocks], manager.blocks),
            ([page for cache in running for page in cache.pages], manager.pages),
            ([cache.slot for cache in running], manager.slots),
        ):
            assert len(set(owned)) == len(owned) == pool.num_used
            assert 0 not in owned
    for cache in running:
        manager.close(cache)
    assert held(manager) == (0, 0, 0)
