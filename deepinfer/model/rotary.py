"""Inverse frequencies of the rotary embedding, plain and YaRN.

All arithmetic is float32; only floor and ceil of the ramp's bounds are taken in double precision.
This is kept to the bit, because at large positions the last bit of a frequency changes the angle.
Source: model specification, section 4.3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.config import TextConfig, YarnConfig


def inverse_frequencies(theta: float, channels: int, yarn: YarnConfig | None = None) -> Tensor:
    """Inverse frequencies [channels / 2] float32 of `channels` rotated channels."""
    exponents = torch.arange(0, channels, 2, dtype=torch.float32) / channels
    frequencies = 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), exponents)
    if yarn is None:
        return frequencies
    low, high = _ramp_bounds(theta, channels, yarn)
    ramp = torch.arange(channels // 2, dtype=torch.float32)
    ramp = ((ramp - low) / (high - low)).clamp(0, 1)
    return frequencies / yarn.factor * ramp + frequencies * (1 - ramp)


def _ramp_bounds(theta: float, channels: int, yarn: YarnConfig) -> tuple[float, float]:
    def pair(rotations: float) -> float:
        span = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return channels * math.log(span) / (2 * math.log(theta))

    low = max(math.floor(pair(yarn.beta_fast)), 0)
    high = min(math.ceil(pair(yarn.beta_slow)), channels - 1)
    return float(low), float(high) if high != low else high + 0.001


def layer_frequencies(text: TextConfig, ratio: int) -> Tensor:
    """Inverse frequencies of a layer with this ratio.

    Ratio 0 has `rope_theta`; compressed layers have `compress_rope_theta`, with YaRN if configured.
    """
    if ratio == 0:
        return inverse_frequencies(text.rope_theta, text.qk_rope_head_dim)
    return inverse_frequencies(text.compress_rope_theta, text.qk_rope_head_dim, text.rope_scaling)
