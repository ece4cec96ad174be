"""Cache bytes of the released configuration, against sections 5.5 and 5.6 of the specification."""

from __future__ import annotations

import pytest

from deepinfer.checkpoint import cache_size as sizes
from deepinfer.config import ModelConfig
from tests.checkpoint.writer import tiny_config
from tests.config.released import released_config


@pytest.fixture(scope="module")
def released() -> ModelConfig:
    return ModelConfig.from_dict(released_config())


def test_a_token_takes_890_bytes(released: ModelConfig) -> None:
    assert sizes.bytes_per_token(released.text) == 890
    assert sizes.block_bytes(released.text) == 113_920


def test_a_window_page_holds_all_layers(released: ModelConfig) -> None:
    assert sizes.page_bytes(released.text, draft=True) == 16 * 43 * 528 == 363_264
    assert sizes.page_bytes(released.text, draft=False) == 16 * 40 * 528


def test_sequence_state_in_the_vendor_layout(released: ModelConfig) -> None:
    assert sizes.compressor_bytes(released.text, 6) == 86_016
    assert sizes.vendor_sequence_bytes(released.text) == 3_128_928


def test_v4_keeps_one_compressed_kv_per_layer(released: ModelConfig) -> None:
    assert sizes.v4_bytes_per_token(released.text) == 19 * (584 + 132) / 4 + 19 * 584 / 128


def test_a_million_tokens_and_a_batch(released: ModelConfig) -> None:
    one = sizes.cache_size(released, batch=1, length=2**20, draft=True)
    assert one.context_bytes == 890 * 2**20
    assert one.pages_per_sequence == 10  # ceil((128 + 1 + 5) / 16) + 1
    four = sizes.cache_size(released, batch=4, length=2**20, draft=True)
    assert four.total_bytes == 4 * one.total_bytes


def test_a_chunk_in_flight_takes_pages_for_its_rows(released: ModelConfig) -> None:
    chunk = sizes.cache_size(released, batch=1, length=4096, draft=True, rows_per_step=4096)
    assert chunk.pages_per_sequence == 266
    assert 96e6 < chunk.window_bytes < 97e6


def test_blocks_are_whole(released: ModelConfig) -> None:
    assert sizes.cache_size(released, batch=1, length=129).context_bytes == 2 * 113_920


def test_a_slot_without_drafts_keeps_the_open_group_only() -> None:
    config = ModelConfig.from_dict(tiny_config())
    pair = 2 * 32 * 4
    assert sizes.slot_bytes(config.text, drafts=0) == 2 * pair + 3 * 4
    assert sizes.slot_bytes(config.text, drafts=3) == 5 * pair + 3 * 4 + 3 * 8
