"""Offsets and sizes of blocks, pages and slots."""

from __future__ import annotations

import pytest

from deepinfer.cache import BLOCK_TOKENS, PAGE_TOKENS, CacheLayout
from deepinfer.formats import INDEX, MAIN, WINDOW
from tests.cache.layouts import released_text, scheduled, small_layout

PAIR = 68 + 288
"""Bytes of an index key and a main entry of the release."""


def test_sizes_of_the_release() -> None:
    layout = CacheLayout(released_text(), draft_stages=3)
    assert (BLOCK_TOKENS, PAGE_TOKENS) == (128, 16)
    assert (layout.block_bytes, layout.bytes_per_token()) == (113_920, 890)
    assert (layout.window_layers, layout.window_layer_bytes) == (43, 16 * 528)
    assert layout.page_bytes == 363_264


def test_regions_of_the_release() -> None:
    """Three sources of ratio 2 with 64 entries each, one of ratio 1 with 128; index keys first."""
    layers = CacheLayout(released_text()).context_layers
    assert list(layers) == [2, 8, 14, 20]
    assert [layer.ratio for layer in layers.values()] == [2, 2, 2, 1]
    assert [layer.entries for layer in layers.values()] == [64, 64, 64, 128]
    assert [layer.index_offset for layer in layers.values()] == [64 * PAIR * i for i in range(4)]
    assert [layer.main_offset - layer.index_offset for layer in layers.values()] == [
        *([64 * 68] * 3),
        128 * 68,
    ]


def test_pages_of_a_chunk_of_the_release_take_96_megabytes() -> None:
    layout = CacheLayout(released_text(), draft_stages=3, backtrack=6)
    pages = layout.window_pages_for(4096)
    assert pages == 266
    assert pages * layout.page_bytes == pytest.approx(96e6, rel=0.01)


def test_slot_of_the_release() -> None:
    layout = CacheLayout(released_text(), backtrack=6)
    assert layout.compressor_rings == {2: 7, 8: 7, 14: 7}
    assert layout.slot_bytes() == 3 * 7 * 2 * 512 * 4
    assert layout.slot_bytes(8) == 2 * layout.slot_bytes()


@pytest.mark.parametrize("backtrack", [1, 2, 6])
def test_a_ring_holds_a_group_and_what_may_be_taken_back(backtrack: int) -> None:
    layout = small_layout(0, 2, 1, backtrack=backtrack)
    assert layout.compressor_rings == {1: 2 + backtrack - 1}


@pytest.mark.parametrize(
    "ratios", [(0, 2, 1), (1, 2), (2, 2, 2), (1,), (0, 0), (2, 0, 1, 0, 2)], ids=str
)
def test_regions_fill_a_block_without_gap_or_overlap(ratios: tuple[int, ...]) -> None:
    layout = small_layout(*ratios)
    spans = []
    for layer in layout.context_layers.values():
        index = INDEX.region_bytes(layer.entries, layout.text.index_head_dim)
        main = MAIN.region_bytes(layer.entries, layout.text.head_dim)
        spans += [
            (layer.index_offset, layer.index_offset + index),
            (layer.main_offset, layer.main_offset + main),
        ]
        assert layer.entries == 16 // layer.ratio
    edges = [0, *(stop for _, stop in spans)]
    assert [start for start, _ in spans] == edges[:-1]
    assert layout.block_bytes == edges[-1]


def test_only_layers_that_own_entries_have_a_place_in_a_block() -> None:
    text = released_text()
    assert tuple(CacheLayout(text).context_layers) == text.kv_source_layer_ids


def test_every_layer_has_window_entries() -> None:
    layout = CacheLayout(scheduled(0, 2, 1), draft_stages=2, page_tokens=4)
    assert layout.window_layers == 5
    assert layout.page_bytes == 5 * WINDOW.region_bytes(4, 64)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_blocks_for_tokens(tokens: int, blocks: int) -> None:
    assert small_layout(0, 2, 1).blocks_for(tokens) == blocks


def test_a_model_without_compressed_layers_has_no_blocks() -> None:
    layout = small_layout(0, 0)
    assert layout.block_bytes == layout.bytes_per_token() == layout.slot_bytes() == 0
    assert layout.blocks_for(1000) == 0
    assert layout.page_bytes > 0


def test_block_that_splits_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="block_tokens 15 is not a multiple of ratio 2"):
        CacheLayout(scheduled(0, 2), block_tokens=15)
    assert CacheLayout(scheduled(0, 1), block_tokens=15).block_bytes > 0
