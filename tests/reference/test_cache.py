"""Pools: bytes written where they belong and nowhere else, and block images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Region
from tests.reference.compare import assert_same_bits
from tests.reference.pools import Sizes, SmallCache

REGIONS = ["main", "index", "window"]
SIZES = Sizes(sequences=3, length=40, width=64, index_width=64)


@pytest.fixture
def cache() -> SmallCache:
    return SmallCache(SIZES)


def values(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 64, generator=generator).bfloat16()


def whole(region: Region) -> Tensor:
    return region.pool.data.clone()


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_load_gives_what_the_format_keeps_of_stored_values(reference, cache, name, dtype):
    region = getattr(cache, name)
    batch = cache.batch([(2, 0, 17), (0, 30, 40)])
    x = values(27).to(dtype)
    reference.store(x, region, batch.positions, batch)
    loaded = reference.load(region, batch.sequence, batch.positions, batch, dtype)
    codes, scales = region.format.encode(x)
    assert_same_bits(loaded, region.format.decode(codes, scales, dtype))


@pytest.mark.parametrize("name", REGIONS)
def test_the_bytes_stand_at_the_offsets_of_the_format(reference, cache, name):
    region = getattr(cache, name)
    batch = cache.batch([(1, 19, 20)])
    x = values(1)
    reference.store(x, region, batch.positions, batch)
    table = batch.table(region.group).blocks[0]
    block = region.pool.data[table[19 // region.entries]]
    place = torch.tensor([19 % region.entries])
    offsets = region.format.offsets(place, region.entries, region.width)
    codes, scales = region.format.encode(x)
    for start, expected in ((offsets.data, codes[0]), (offsets.scale, scales[0])):
        first = region.offset + int(start)
        assert_same_bits(block[first : first + len(expected)], expected)


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("position", [0, 3, 4, 15, 16, 31, 32, 39])
def test_a_store_changes_one_entry_and_nothing_else(reference, cache, name, position):
    region = getattr(cache, name)
    before = whole(region)
    batch = cache.batch([(1, position, position + 1)])
    reference.store(values(1), region, batch.positions, batch)
    changed = (region.pool.data != before).nonzero()
    block = batch.table(region.group).blocks[0, position // region.entries]
    assert set(changed[:, 0].tolist()) == {int(block)}
    assert len(changed) <= region.format.entry_bytes(region.width)


@pytest.mark.parametrize("name", REGIONS)
def test_rows_without_entry_or_sequence_touch_block_0_alone(reference, cache, name):
    region = getattr(cache, name)
    before = whole(region)
    batch = cache.batch([(1, 5, 8)], padding=2)
    entries = torch.tensor([-1, -1, -1, 5, 6])
    reference.store(values(5), region, entries, batch)
    assert_same_bits(region.pool.data[1:], before[1:])


def test_an_entry_outside_the_table_touches_block_0_alone(reference, cache):
    before = whole(cache.window)
    batch = cache.batch([(1, 3, 5), (1, 40, 41)], first_page=1)
    reference.store(values(3), cache.window, batch.positions, batch)
    changed = set((cache.window.pool.data != before).nonzero()[:, 0].tolist())
    assert changed - {0} == {int(cache.pages[1, 1])}


def test_a_window_table_may_start_at_a_later_page(reference, cache):
    late = cache.batch([(0, 20, 24)], first_page=5)
    reference.store(values(4), cache.window, late.positions, late)
    batch = cache.batch([(0, 20, 24)])
    loaded = reference.load(cache.window, batch.sequence, batch.positions, batch, torch.bfloat16)
    same = reference.load(cache.window, late.sequence, late.positions, late, torch.bfloat16)
    assert_same_bits(loaded, same)


@pytest.mark.parametrize("name", REGIONS)
def test_missing_entries_load_as_zeros(reference, cache, name):
    region = getattr(cache, name)
    region.pool.data[0] = 0x7F
    batch = cache.batch([(0, 0, 1)])
    sequence, entries = torch.tensor([0, -1, 0, 0]), torch.tensor([-1, 3, 999, -7])
    loaded = reference.load(region, sequence, entries, batch, torch.float32)
    assert torch.equal(loaded, torch.zeros(4, 64))


def test_nothing_to_store_or_load(reference, cache):
    before = whole(cache.main)
    batch = cache.batch([])
    reference.store(values(0), cache.main, batch.positions, batch)
    loaded = reference.load(cache.main, batch.sequence, batch.positions, batch, torch.float32)
    assert loaded.shape == (0, 64)
    assert_same_bits(cache.main.pool.data, before)


def test_nan_spoils_its_group_and_no_other(reference, cache):
    batch = cache.batch([(0, 0, 2)])
    x = values(2)
    x[0, 40] = torch.nan
    reference.store(x, cache.window, batch.positions, batch)
    loaded = reference.load(cache.window, batch.sequence, batch.positions, batch, torch.bfloat16)
    assert loaded[0, 32:].isnan().all()
    assert not loaded[0, :32].isnan().any()
    assert not loaded[1].isnan().any()


def test_export_and_import_move_images_and_leave_the_padding(reference, cache):
    pool = cache.context_pool
    blocks = torch.tensor([3, 1])
    images = reference.export(pool, blocks)
    assert images.shape == (2, pool.image_bytes)
    before = pool.data.clone()
    reference.import_(pool, torch.tensor([2, 5]), images)
    assert_same_bits(pool.data[[2, 5], : pool.image_bytes], before[[3, 1], : pool.image_bytes])
    assert_same_bits(pool.data[[2, 5], pool.image_bytes :], before[[2, 5], pool.image_bytes :])
    others = [0, 1, 3, 4, 6, 7, 8, 9]
    assert_same_bits(pool.data[others], before[others])


def test_copy_reads_all_sources_before_it_writes(reference, cache):
    pool = cache.window_pool
    before = pool.data.clone()
    reference.copy(pool, torch.tensor([[1, 2], [2, 3], [3, 1]]))
    assert_same_bits(pool.data[[2, 3, 1]], before[[1, 2, 3]])
    assert_same_bits(pool.data[4:], before[4:])


@pytest.mark.parametrize("block", [-1, 1000])
def test_blocks_outside_the_pool_are_errors(reference, cache, block):
    pool = cache.context_pool
    with pytest.raises(IndexError):
        reference.export(pool, torch.tensor([block]))
    with pytest.raises(IndexError):
        reference.import_(pool, torch.tensor([block]), torch.zeros(1, pool.image_bytes).byte())
    with pytest.raises(IndexError):
        reference.copy(pool, torch.tensor([[block, 1]]))
