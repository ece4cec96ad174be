"""`EngineOptions`: allowed values, and the numeric mode that a checkpoint gets by itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from deepinfer.backend import Numerics
from deepinfer.config import ModelConfig
from deepinfer.engine import EngineOptions
from deepinfer.errors import NotBuiltYetError, UsageError
from tests.config.released import released_config

COUNTS = ["max_num_seqs", "expert_parallel_size", "context_parallel_size"]
OPTIONAL_COUNTS = ["max_model_len", "max_num_batched_tokens", "num_blocks"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True])
def test_counts_are_positive_integers(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*{value!r}; allowed: an integer of at least"):
        EngineOptions(**{name: value})


@pytest.mark.parametrize("name", OPTIONAL_COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True])
def test_counts_that_may_be_left_to_the_engine(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*{value!r}; allowed: .* at least 1 or None"):
        EngineOptions(**{name: value})


@pytest.mark.parametrize("value", [0, -0.1, 1.01, True, "0.9", float("nan"), None])
def test_the_share_of_memory(value: Any) -> None:
    with pytest.raises(UsageError, match=r"gpu_memory_utilization is .*; allowed: .* in \(0, 1\]"):
        EngineOptions(gpu_memory_utilization=value)


@pytest.mark.parametrize("name", ["chunked_prefill", "stop_preempted_request", "disable_log_stats"])
def test_switches(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 1; allowed: True or False"):
        EngineOptions(**{name: 1})


def test_tokens_per_block_is_fixed() -> None:
    assert EngineOptions(tokens_per_block=128)
    assert EngineOptions(tokens_per_block=-1)
    with pytest.raises(UsageError, match="tokens_per_block is 64; allowed: 128, or -1"):
        EngineOptions(tokens_per_block=64)


def test_a_piece_of_a_prompt_is_no_longer_than_a_step() -> None:
    with pytest.raises(UsageError, match="lookahead_tokens is 9 and max_num_batched_tokens 8"):
        EngineOptions(lookahead_tokens=9, max_num_batched_tokens=8)


@pytest.mark.parametrize(
    ("name", "value", "nothing", "feature"),
    [
        ("data_parallel_size", 2, 1, "data parallelism"),
        ("context_parallel_size", 2, 1, "context parallelism"),
        ("engram_parallel_size", 4, 1, "Engram parallelism"),
        ("engine_rank", 1, 0, "engine rank"),
        ("engine_group_rank", 1, 0, "engine group"),
        ("steps_in_flight", 1, 0, "a step that runs while the next one is planned"),
        ("engine_type", "prompt", "normal", "separate engines"),
        ("load_format", "dummy", "auto", "random weights"),
    ],
)
def test_what_is_not_built_says_so(name: str, value: Any, nothing: Any, feature: str) -> None:
    assert EngineOptions(**{name: nothing}) == EngineOptions() or nothing == 1
    with pytest.raises(NotBuiltYetError, match=f"{name} is {value!r}: .*{feature}|{feature}"):
        EngineOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_num_seq", "did you mean max_num_seqs"),
        ("decode_sequence", "use their .text or .token_ids"),
        ("trust_remote_code", "never run"),
        ("enable_chunked_prefill", "use chunked_prefill"),
        ("zzz", "allowed: numerics, compute"),
    ],
)
def test_a_name_that_is_no_option(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"{name!r} is no option of the engine; .*{hint}"):
        EngineOptions.from_names({"max_num_seqs": 3, name: 1})


def test_options_by_name() -> None:
    assert EngineOptions.from_names({"max_num_seqs": 3}) == EngineOptions(max_num_seqs=3)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 2048),
        ({"max_num_seqs": 3000}, 3000),
        ({"lookahead_tokens": 4000}, 4000),
        ({"max_num_batched_tokens": 7}, 7),
        ({"chunked_prefill": False, "max_model_len": 5000}, 5000),
        ({"chunked_prefill": False, "max_model_len": 50}, 2048),
    ],
)
def test_rows_of_a_step(options: dict[str, Any], rows: int) -> None:
    assert EngineOptions(**options).batched_tokens(config_with("dynamic")) == rows


def test_max_model_len_stays_within_the_positions_of_the_model() -> None:
    config = config_with("dynamic")
    limit = config.text.max_position_embeddings
    assert EngineOptions().model_len(config) == limit
    assert EngineOptions(max_model_len=9).model_len(config) == 9
    with pytest.raises(UsageError, match=f"max_model_len is {limit + 1}; allowed: 1 to {limit}"):
        EngineOptions(max_model_len=limit + 1).model_len(config)


@pytest.mark.parametrize("value", ["", "REF", "di", None])
def test_unknown_numerics(value: Any) -> None:
    with pytest.raises(UsageError, match=f"numerics is {value!r}; allowed: auto, ref, infer"):
        EngineOptions(numerics=value)


@pytest.mark.parametrize("value", ["", "fp16", None])
def test_unknown_compute(value: Any) -> None:
    with pytest.raises(UsageError, match=f"compute is {value!r}; allowed: bf16, fp32, fp64"):
        EngineOptions(compute=value)


@pytest.mark.parametrize("size", [2, 8])
def test_expert_parallelism_is_not_built_yet(size: int) -> None:
    with pytest.raises(
        NotBuiltYetError, match=f"expert_parallel_size is {size}: .* is not built yet; use 1"
    ):
        EngineOptions(expert_parallel_size=size)


@pytest.mark.parametrize(
    ("compute", "dtype"),
    [("bf16", torch.bfloat16), ("fp32", torch.float32), ("fp64", torch.float64)],
)
def test_compute_names_a_dtype(compute: str, dtype: torch.dtype) -> None:
    assert EngineOptions(compute=compute).dtype == dtype


def config_with(activation_scheme: str | None) -> ModelConfig:
    """The release, with its activation scheme or without quantisation."""
    published = released_config()
    if activation_scheme is None:
        del published["quantization_config"]
        return ModelConfig.from_dict(published)
    config = ModelConfig.from_dict(published)
    assert config.quantization is not None
    quantisation = dataclasses.replace(config.quantization, activation_scheme=activation_scheme)
    return dataclasses.replace(config, quantization=quantisation)


@pytest.mark.parametrize(
    ("scheme", "numerics"),
    [("dynamic", Numerics.INFER), ("static", Numerics.REF), (None, Numerics.REF)],
)
def test_auto_follows_the_checkpoint(scheme: str | None, numerics: Numerics) -> None:
    assert EngineOptions().numerics_for(config_with(scheme)) is numerics


@pytest.mark.parametrize("scheme", ["dynamic", None])
@pytest.mark.parametrize("name", ["ref", "infer"])
def test_a_named_mode_wins(name: str, scheme: str | None) -> None:
    assert EngineOptions(numerics=name).numerics_for(config_with(scheme)) is Numerics(name)
