"""Rotation, norm, activation and routing against golden vectors."""

from __future__ import annotations

import pytest
import torch

from deepinfer.backend import Activation, Numerics
from deepinfer.config import ModelConfig, YarnConfig
from deepinfer.model.rotary import inverse_frequencies, layer_frequencies
from tests.reference.compare import assert_close, assert_same_sets
from tests.reference.sources import plain

YARN = YarnConfig(
    factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536
)
FREQUENCIES = {
    "plain": inverse_frequencies(10000, 64),
    "yarn": inverse_frequencies(160000, 64, YARN),
}
PRECISIONS = ["fp32", "bf16"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("direction", ["out", "inverse"])
@pytest.mark.parametrize("name", ["plain", "yarn"])
@pytest.mark.parametrize("numerics", Numerics)
def test_rope(reference, golden, name, direction, precision, numerics):
    x = golden[f"rope.{name}.in.{precision}"][0]
    rotated = reference.rope(
        x, golden["rope.positions"][0], FREQUENCIES[name], direction == "inverse", numerics
    )
    assert_close(rotated, golden[f"rope.{name}.{direction}.{precision}"][0])


@pytest.mark.parametrize("name", ["plain", "yarn", "tiny_a_yarn"])
def test_rope_turns_by_the_golden_angle_even_at_a_million(
    reference, golden, golden_directory, name
):
    config = ModelConfig.from_file(golden_directory / "tiny-a" / "checkpoint" / "config.json")
    frequencies = FREQUENCIES.get(name, layer_frequencies(config.text, 1))
    angles = golden[f"rope.{name}.angles"][0]
    unit = torch.tensor([1.0, 0.0]).repeat(angles.shape[0], angles.shape[1])
    turned = reference.rope(
        unit, golden["rope.positions"][0], frequencies, False, Numerics.REF
    )
    assert torch.equal(turned[:, 0::2], angles.cos())
    assert torch.equal(turned[:, 1::2], angles.sin())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rms_norm(reference, golden, precision):
    x, weight = golden[f"rmsnorm.in.{precision}"], golden[f"rmsnorm.weight.{precision}"]
    assert_close(reference.rms_norm(x, weight, 1e-20), golden[f"rmsnorm.out.{precision}"])


@pytest.mark.parametrize("limit", [1, 10])
def test_swiglu(reference, golden, limit):
    gate, up = golden["swiglu.gate_up.bf16"].chunk(2, -1)
    weights = golden["swiglu.route_weight"][:, 0]
    hidden = reference.swiglu(gate, up, float(limit), weights, Numerics.REF)
    assert_close(hidden.values, golden[f"swiglu.limit{limit}.out.bf16"])


@pytest.mark.parametrize("rows", ["text", "mixed"])
@pytest.mark.parametrize("experts, k", [(384, 6), (8, 3)])
def test_router(reference, golden, experts, k, rows):
    name = f"router.r{experts}"
    gate = reference.pack_linear(plain(golden[f"{name}.weight"]))
    logits = reference.linear(Activation(golden[f"{name}.in"]), gate, torch.float32)
    image_mask = golden[f"{name}.image_mask"]
    if rows == "text":
        image_mask = torch.zeros_like(image_mask)
    bias, image_bias = golden[f"{name}.bias"], golden[f"{name}.bias_vl"]
    routing = reference.route(logits, bias, image_bias, image_mask, k, 1.5)
    expected = golden[f"{name}.{rows}.indices"]
    scores = torch.nn.functional.softplus(logits).sqrt()
    scores = scores + torch.where(image_mask[:, None], image_bias, bias)
    assert_same_sets(routing.ids, expected, scores, tolerance=1e-5)
    places = (routing.ids[:, :, None] == expected[:, None, :]).int().argmax(-1)
    assert_close(routing.weights, golden[f"{name}.{rows}.weights"].gather(1, places))
