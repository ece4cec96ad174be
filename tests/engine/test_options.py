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

COUNTS = ["max_model_len", "max_num_batched_tokens", "max_num_seqs", "expert_parallel_size"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True])
def test_counts_are_positive_integers(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is .*{value!r}; allowed: an integer of at least"):
        EngineOptions(**{name: value})


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
    with pytest.raises(NotBuiltYetError, match=f"over {size} devices is not built yet"):
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
