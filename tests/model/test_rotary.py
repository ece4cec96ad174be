"""Inverse frequencies: model specification, section 4.3 and appendix B.5."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from deepinfer.config import ModelConfig, TextConfig
from deepinfer.model import inverse_frequencies, layer_frequencies
from tests.config.released import released_config

COMPRESSED = {
    0: 1.0,
    1: 0.687656,
    15: 3.63553851e-3,
    16: 2.26562493e-3,
    20: 2.96977785e-4,
    24: 1.95312532e-5,
    25: 5.37231244e-6,
    31: 5.68052940e-7,
}
PLAIN = {0: 1.0, 1: 0.749894202, 31: 1.33352150e-4}


@pytest.fixture(scope="module")
def text() -> TextConfig:
    return ModelConfig.from_dict(released_config()).text


@pytest.mark.parametrize(("pair", "value"), COMPRESSED.items())
@pytest.mark.parametrize("ratio", [1, 2])
def test_compressed_layers_of_the_release(
    ratio: int, pair: int, value: float, text: TextConfig
) -> None:
    got = layer_frequencies(text, ratio)
    assert got.shape == (32,)
    assert got.dtype == torch.float32
    assert float(got[pair]) == pytest.approx(value, rel=2e-7 if pair != 1 else 1e-6)


@pytest.mark.parametrize(("pair", "value"), PLAIN.items())
def test_window_layers_of_the_release(pair: int, value: float, text: TextConfig) -> None:
    got = layer_frequencies(text, 0)
    assert got.shape == (32,)
    assert got.dtype == torch.float32
    assert float(got[pair]) == pytest.approx(value, rel=2e-7)


def test_pairs_before_the_ramp_are_plain_and_after_it_divided(text: TextConfig) -> None:
    plain = inverse_frequencies(160000, 64)
    got = layer_frequencies(text, 1)
    assert torch.equal(got[:16], plain[:16])
    assert torch.equal(got[25:], plain[25:] / 16)
    between = got[16:25]
    assert bool(((between < plain[16:25]) & (between > plain[16:25] / 16)).all())


def test_without_scaling_every_layer_is_plain(text: TextConfig) -> None:
    unscaled = dataclasses.replace(text, rope_scaling=None)
    assert torch.equal(layer_frequencies(unscaled, 1), inverse_frequencies(160000, 64))
    assert torch.equal(layer_frequencies(unscaled, 0), layer_frequencies(text, 0))


@pytest.mark.parametrize(("theta", "channels"), [(10000, 64), (160000, 64), (10000, 16), (2.5, 2)])
def test_frequencies_are_powers_of_theta(theta: float, channels: int) -> None:
    got = inverse_frequencies(theta, channels)
    want = [theta ** (-2 * pair / channels) for pair in range(channels // 2)]
    assert got.tolist() == pytest.approx(want, rel=1e-6)


def test_bounds_of_the_ramp_follow_the_rotations(text: TextConfig) -> None:
    """A pair that turns more than beta_fast times within the original length is not scaled, one
    that turns less than beta_slow times is scaled whole."""
    yarn = text.rope_scaling
    assert yarn is not None
    plain = inverse_frequencies(160000, 64)
    turns = plain.double() * yarn.original_max_position_embeddings / (2 * math.pi)
    got = layer_frequencies(text, 2)
    assert torch.equal(got[turns > yarn.beta_fast], plain[turns > yarn.beta_fast])
    slow = turns < yarn.beta_slow
    assert torch.equal(got[slow], plain[slow] / yarn.factor)


def test_a_ramp_without_width_is_a_step(text: TextConfig) -> None:
    assert text.rope_scaling is not None
    yarn = dataclasses.replace(
        text.rope_scaling, beta_fast=1, beta_slow=1, original_max_position_embeddings=4
    )
    got = inverse_frequencies(10000, 16, yarn)
    plain = inverse_frequencies(10000, 16)
    assert bool(torch.isfinite(got).all())
    assert float(got[0]) == 1
    assert torch.equal(got[1:], plain[1:] / yarn.factor)
