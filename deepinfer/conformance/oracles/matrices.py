"""Stored matrices and the FP8 activation format, decoded from their bits in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import LinearSource

GROUP = 32
AMAX_FLOOR = 1e-4
E4M3_MAX = 448.0
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e4m3(byte: int) -> float:
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def matrix_values(source: LinearSource, dtype: torch.dtype) -> Tensor:
    """A published matrix [M, K] as float64; one stored in float32 is rounded to bf16 for bf16."""
    weight = source.weight.read()
    if source.kind == "bf16":
        return weight.double()
    if source.kind == "fp32":
        return (weight.bfloat16() if dtype == torch.bfloat16 else weight).double()
    assert source.scale is not None
    scales = torch.pow(2.0, source.scale.read().double() - 127)
    if source.kind == "fp8":
        table = torch.tensor([_e4m3(byte) for byte in range(256)], dtype=torch.float64)
        values = table[weight.long()]
        scales = scales.repeat_interleave(GROUP, 0)[: len(values)]
    else:
        table = torch.tensor([*_E2M1, *(-x for x in _E2M1)], dtype=torch.float64)
        low, high = table[(weight & 15).long()], table[(weight >> 4).long()]
        values = torch.stack((low, high), -1).flatten(-2)
    return values * scales.repeat_interleave(GROUP, 1)[:, : values.shape[1]]


def through_fp8(x: Tensor) -> Tensor:
    """Values [..., n] as a reader of their FP8 blocks of 32 channels sees them, float64.

    x float32 or float64 is what the quantiser gets. Finite values and NaN only.
    """
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=AMAX_FLOOR)
    target = amax * torch.tensor(1 / E4M3_MAX, dtype=x.dtype)
    mantissa, exponent = torch.frexp(target)
    scale = torch.ldexp(torch.ones_like(target).double(), exponent - (mantissa == 0.5).int())
    scaled = groups.double() / scale
    floor = (torch.frexp(scaled).exponent - 1).clamp(min=-6)  # below are subnormal codes
    step = torch.ldexp(torch.ones_like(scaled), floor - 3)
    rounded = (torch.round(scaled / step) * step).clamp(-E4M3_MAX, E4M3_MAX)
    broken = torch.isnan(amax)
    return torch.where(broken, float("nan"), rounded * scale).flatten(-2)
