"""The tensors of the cache: as many bytes as the layout counts, every region where it belongs."""

from __future__ import annotations

import pytest
import torch

from deepinfer.backend import Contract
from deepinfer.backend.batch import CONTEXT
from deepinfer.backend.batch import WINDOW as WINDOW_GROUP
from deepinfer.cache import CacheLayout, CacheManager, CachePools
from deepinfer.formats import INDEX, MAIN, WINDOW
from deepinfer_reference.backend import ReferenceBackend
from tests.cache.layouts import small_layout

CPU = torch.device("cpu")
SCHEDULES = [(0, 2, 1), (1, 2), (2,), (0, 0), (1, 0, 2, 2)]
schedules = pytest.mark.parametrize("ratios", SCHEDULES, ids=str)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def pools_of(layout: CacheLayout, dtype: torch.dtype = torch.float32) -> CachePools:
    return CachePools(layout, 5, 7, 3, CPU, dtype)


@schedules
@dtypes
def test_accounted_bytes_are_those_of_the_tensors(
    ratios: tuple[int, ...], dtype: torch.dtype
) -> None:
    layout = small_layout(*ratios, backtrack=3)
    pools = pools_of(layout, dtype)
    expected = 6 * layout.block_bytes + 8 * layout.page_bytes
    expected += 4 * layout.slot_bytes(dtype.itemsize)
    tensors = [pools.context.data, pools.window.data]
    for layer in range(len(ratios)):
        state = pools.compressor(layer)
        if state is not None:
            assert state.members.dtype == dtype
            tensors.append(state.members)
    assert pools.nbytes == expected
    assert sum(t.untyped_storage().nbytes() for t in tensors) == expected


@schedules
def test_only_sources_of_ratio_2_have_pending_members(ratios: tuple[int, ...]) -> None:
    layout = small_layout(*ratios, backtrack=3)
    pools = pools_of(layout)
    for layer, ratio in enumerate(ratios):
        state = pools.compressor(layer)
        assert (state is not None) == (ratio == 2)
        if state is not None:
            assert state.members.shape == (4, 4, 2, 64)
            assert state.ring == 4


def test_regions_say_where_entries_are() -> None:
    layout = small_layout(0, 2, 1)
    pools = pools_of(layout)
    for layer, entries in ((1, 8), (2, 16)):
        main, index = pools.main(layer), pools.index(layer)
        assert (main.group, main.format, main.width, main.entries) == (CONTEXT, MAIN, 64, entries)
        assert (index.group, index.format, index.width) == (CONTEXT, INDEX, 32)
        assert index.entries == entries
        assert main.offset == layout.context_layers[layer].main_offset
        assert index.offset == layout.context_layers[layer].index_offset
    windows = [pools.window_region(place) for place in range(layout.window_layers)]
    assert [window.offset for window in windows] == [
        i * layout.window_layer_bytes for i in (0, 1, 2)
    ]
    assert {(w.group, w.format, w.width, w.entries) for w in windows} == {
        (WINDOW_GROUP, WINDOW, 64, 4)
    }


def test_a_layer_without_entries_of_its_own_has_no_region() -> None:
    pools = pools_of(small_layout(0, 2, 1))
    with pytest.raises(KeyError):
        pools.main(0)
    with pytest.raises(IndexError):
        pools.window_region(3)


@schedules
def test_pools_of_a_manager_hold_every_number_that_it_lends(ratios: tuple[int, ...]) -> None:
    """Also when some are lent already."""
    manager = CacheManager(small_layout(*ratios), num_blocks=4, num_pages=6, num_slots=2)
    manager.reserve(manager.open(), 20)
    pools = manager.pools(CPU, torch.float32)
    assert pools.context.num_blocks == 1 + manager.blocks.capacity
    assert (pools.window.num_blocks, pools.num_slots) == (1 + 6, 1 + 2)


@pytest.fixture(scope="module")
def operators() -> Contract:
    return ReferenceBackend("cpu")


@pytest.mark.parametrize("group", [CONTEXT, WINDOW_GROUP])
def test_exported_images_are_whole_blocks(group: str, operators: Contract) -> None:
    """Bytes travel between pools of other sizes and block numbers."""
    layout = small_layout(0, 2, 1)
    source, target = pools_of(layout), CachePools(layout, 9, 9, 1, CPU)
    here = source.context if group == CONTEXT else source.window
    there = target.context if group == CONTEXT else target.window
    here.data.random_(0, 256, generator=torch.Generator().manual_seed(0))
    there.data.fill_(0xAA)
    images = operators.export(here, torch.tensor([4, 1]))
    assert images.shape == (2, here.image_bytes)
    operators.import_(there, torch.tensor([2, 8]), images)
    assert torch.equal(there.data[2], here.data[4])
    assert torch.equal(there.data[8], here.data[1])
    untouched = [0, 1, 3, 4, 5, 6, 7, 9]
    assert bool((there.data[untouched] == 0xAA).all())
