"""Sizes of an engine's cache: from a number of blocks or from a share of memory."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer.backend import Memory
from deepinfer.cache import CacheLayout
from deepinfer.config import ModelConfig
from deepinfer.engine import EngineOptions
from deepinfer.engine.sizing import UNKNOWN_MEMORY, Sizes, plan_sizes, step_bytes
from deepinfer.errors import UsageError
from tests.config.released import released_config

GIB = 2**30
CONFIG = ModelConfig.from_dict(released_config())
LAYOUT = CacheLayout(CONFIG.text)
LIMIT = CONFIG.text.max_position_embeddings


def sizes(memory: Memory | None = None, ratio: float = 1.0, **options: Any) -> Sizes:
    return plan_sizes(EngineOptions(**options), CONFIG, LAYOUT, memory, slots_ratio=ratio)


def test_explicit_blocks_are_taken_as_they_are() -> None:
    got = sizes(num_blocks=77, max_model_len=4096)
    assert (got.num_blocks, got.max_model_len, got.limited_by_memory) == (77, 4096, False)


def test_a_length_left_to_the_engine_is_what_the_blocks_hold() -> None:
    got = sizes(num_blocks=77)
    assert (got.max_model_len, got.limited_by_memory) == (77 * 128, True)
    assert "max_model_len 9856, all that the cache holds" in str(got)


def test_no_more_blocks_than_all_sequences_can_use() -> None:
    got = sizes(Memory(200 * GIB, 200 * GIB), max_num_seqs=3, max_model_len=1000)
    assert got.num_blocks == 3 * 8


def test_blocks_take_what_the_share_of_memory_leaves() -> None:
    """Total 100 GiB, 40 in use by weights, share 0.9: 50 GiB for a step and all pools."""
    memory = Memory(60 * GIB, 100 * GIB)
    got = sizes(memory, max_num_seqs=64, max_model_len=LIMIT)
    left = int(0.9 * 100 * GIB) - 40 * GIB - step_bytes(CONFIG, 2048, 64, LIMIT)
    assert got.cache_bytes <= left < got.cache_bytes + LAYOUT.block_bytes
    more = sizes(memory, max_num_seqs=64, max_model_len=LIMIT, gpu_memory_utilization=0.95)
    assert more.num_blocks - got.num_blocks == pytest.approx(5 * GIB / LAYOUT.block_bytes, abs=1)


def test_memory_bounds_the_length_where_none_is_asked_for() -> None:
    memory = Memory(3 * GIB, 100 * GIB)
    options: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 64}
    got = sizes(memory, gpu_memory_utilization=0.979, **options)
    assert got.limited_by_memory
    assert got.max_model_len == got.num_blocks * 128 < LIMIT
    with pytest.raises(UsageError, match=f"one sequence of {LIMIT} tokens needs .* MiB more"):
        sizes(memory, gpu_memory_utilization=0.979, max_model_len=LIMIT, **options)


def test_memory_that_is_gone_is_an_error_with_the_numbers() -> None:
    with pytest.raises(UsageError, match=r"the cache may take -.* Lower max_num_seqs"):
        sizes(Memory(GIB, 100 * GIB))


def test_a_device_that_cannot_say_gets_a_fixed_share() -> None:
    got = sizes(None, max_num_seqs=8)
    assert got.cache_bytes <= UNKNOWN_MEMORY < got.cache_bytes + LAYOUT.block_bytes


@pytest.mark.parametrize(("ratio", "slots"), [(1.2, 12), (1.0, 10), (0.5, 5), (0.1, 1)])
def test_slots_by_ratio(ratio: float, slots: int) -> None:
    got = sizes(ratio=ratio, max_num_seqs=10, max_model_len=128)
    assert got.num_slots == slots
    assert got.num_blocks == min(slots, 10)


def test_a_ratio_that_leaves_no_slot() -> None:
    with pytest.raises(UsageError, match=r"DEEPINFER_NUM_STATE_SLOTS_RATIO is 0.01"):
        sizes(ratio=0.01, max_num_seqs=10)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 500])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_pages_suffice_for_any_split_of_a_step(rows: int, parts: int) -> None:
    """However a step's rows are shared out, every sequence's window and rows have their pages."""
    got = sizes(max_num_seqs=8, max_num_batched_tokens=rows, max_model_len=4096)
    shares = [rows // parts + (i < rows % parts) for i in range(parts)]
    needed = sum(LAYOUT.window_pages_for(max(share, 1)) for share in shares)
    needed += (8 - parts) * LAYOUT.window_pages_for(1)
    assert needed <= got.num_pages
