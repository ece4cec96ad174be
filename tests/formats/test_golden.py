"""Quantisation and dequantisation vectors of an independent implementation.

Set DEEPINFER_GOLDEN_DIR to a directory that holds `ops.safetensors`; without it these tests skip.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from deepinfer.formats import (
    Scheme,
    e2m1,
    e4m3,
    fp4_weight,
    fp8_rows,
    fp8_weight,
    quantise,
    round_trip,
)

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
POWER_OF_TWO = {"fp8": Scheme.FP8_BLOCK32, "mxfp4": Scheme.MXFP4}


@pytest.fixture(scope="module")
def vectors() -> dict[str, torch.Tensor]:
    directory = os.environ.get("DEEPINFER_GOLDEN_DIR")
    if not directory:
        pytest.skip("DEEPINFER_GOLDEN_DIR is not set: no golden vectors to compare with")
    with safe_open(Path(directory) / "ops.safetensors", "pt") as file:
        names = [name for name in file.keys() if name.startswith(("quant.", "dequant."))]
        return {name: file.get_tensor(name) for name in names}


def assert_same_values(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def stored_bytes(vectors: dict[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    weight, scale = vectors[f"dequant.{name}.weight"], vectors[f"dequant.{name}.scale"]
    return weight.view(torch.uint8), scale.view(torch.uint8)


@pytest.mark.parametrize("scheme", ["fp8", "mxfp4"])
@pytest.mark.parametrize("case", ["bf16", "fp32", "rand.bf16"])
def test_power_of_two_schemes(vectors, scheme, case):
    prefix, dtype = f"quant.{scheme}.{case}".rsplit(".", 1)
    x, expected = vectors[f"{prefix}.in.{dtype}"], vectors[f"{prefix}.out.{dtype}"]
    assert x.dtype == DTYPES[dtype]
    assert_same_values(round_trip(x, POWER_OF_TWO[scheme]), expected)


@pytest.mark.parametrize("case", ["bf16", "fp32", "rand.bf16"])
def test_nvfp4_by_division(vectors, case):
    """With this file's division in place of the reciprocal every value is equal."""
    prefix, dtype = f"quant.nvfp4.{case}".rsplit(".", 1)
    x, expected = vectors[f"{prefix}.in.{dtype}"], vectors[f"{prefix}.out.{dtype}"]
    scales = quantise(x, Scheme.NVFP4).scales
    sf = e4m3.decode(scales, torch.float32).repeat_interleave(16, dim=-1)
    values = e2m1.decode(e2m1.encode(x.float() / sf), torch.float32) * sf
    assert_same_values(values.to(x.dtype), expected)


@pytest.mark.parametrize("case", ["bf16", "fp32", "rand.bf16"])
def test_nvfp4_differs_by_one_code_at_documented_ties_only(vectors, case):
    prefix, dtype = f"quant.nvfp4.{case}".rsplit(".", 1)
    x, expected = vectors[f"{prefix}.in.{dtype}"], vectors[f"{prefix}.out.{dtype}"]
    codes, scales = quantise(x, Scheme.NVFP4)
    sf = e4m3.decode(scales, torch.float32).repeat_interleave(16, dim=-1)
    theirs = e2m1.encode(expected.float() / sf)
    different = round_trip(x, Scheme.NVFP4) != expected
    assert different.float().mean() <= 0.001 or "rand" not in case
    ours = e2m1.unpack(codes)[different]
    assert ((ours ^ theirs[different]) & 8 == 0).all()
    assert (ours - theirs[different] == 1).all()
    quotients = (x.float() / sf).abs()[different]
    assert set(quotients.tolist()) <= {1.25, 2.5, 5.0}
    significands = torch.frexp(sf[different]).mantissa * 2
    assert set(significands.tolist()) <= {1.875}


@pytest.mark.parametrize("name", ["fp8_block32", "fp8_codes"])
def test_fp8_matrices(vectors, name):
    values = fp8_weight(*stored_bytes(vectors, name), torch.float32)
    assert_same_values(values, vectors[f"dequant.{name}.out.fp32"])


@pytest.mark.parametrize("name", ["fp4_packed", "fp4_codes"])
def test_fp4_matrices(vectors, name):
    values = fp4_weight(*stored_bytes(vectors, name), torch.float32)
    assert_same_values(values, vectors[f"dequant.{name}.out.fp32"])


def test_fp8_rows(vectors):
    values = fp8_rows(*stored_bytes(vectors, "fp8_rowwise32"), torch.float32)
    assert_same_values(values, vectors["dequant.fp8_rowwise32.out.fp32"])
