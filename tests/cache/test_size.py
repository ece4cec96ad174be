"""Cache bytes of the released configuration, against sections 5.5 and 5.6 of the specification."""

from __future__ import annotations

import pytest

from deepinfer.cache import CacheLayout
from deepinfer.cache import size as sizes
from deepinfer.config import ModelConfig
from tests.checkpoint.writer import tiny_config
from tests.config.released import released_config


@pytest.fixture(scope="module")
def released() -> ModelConfig:
    return ModelConfig.from_dict(released_config())


def test_sequence_state_in_the_vendor_layout(released: ModelConfig) -> None:
    assert CacheLayout(released.text, backtrack=6).slot_bytes() == 86_016
    assert sizes.vendor_sequence_bytes(released.text) == 3_128_928


def test_v4_keeps_one_compressed_kv_per_layer(released: ModelConfig) -> None:
    assert sizes.v4_bytes_per_token(released.text) == 19 * (584 + 132) / 4 + 19 * 584 / 128


def test_a_million_tokens_and_a_batch(released: ModelConfig) -> None:
    one = sizes.cache_size(released.text, batch=1, length=2**20, drafts=True)
    assert one.context_bytes == 890 * 2**20
    assert one.pages_per_sequence == 10  # ceil((128 + 1 + 5) / 16) + 1
    four = sizes.cache_size(released.text, batch=4, length=2**20, drafts=True)
    assert four.total_bytes == 4 * one.total_bytes


def test_a_chunk_in_flight_takes_pages_for_its_rows(released: ModelConfig) -> None:
    chunk = sizes.cache_size(released.text, batch=1, length=4096, drafts=True, rows_per_step=4096)
    assert chunk.pages_per_sequence == 266
    assert 96e6 < chunk.window_bytes < 97e6


def test_blocks_are_whole(released: ModelConfig) -> None:
    assert sizes.cache_size(released.text, batch=1, length=129).context_bytes == 2 * 113_920


def test_a_slot_without_drafts_keeps_the_open_group_only() -> None:
    config = ModelConfig.from_dict(tiny_config())
    pair = 2 * 32 * 4
    assert sizes.cache_size(config.text, batch=1, length=1).slot_bytes == 2 * pair
