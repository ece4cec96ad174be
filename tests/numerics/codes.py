"""Byte formats by brute force: the nearest of all values of a format, by comparing with midpoints.

Independent of `deepinfer.formats`: no bit patterns of floats, no tables by pattern. Source: model
specification, notation and sections 2.3 and 5.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
E4M3 = torch.tensor(
    [
        (code & 7) * 2.0**-9 if code < 8 else (8 + (code & 7)) * 2.0 ** ((code >> 3) - 10)
        for code in range(127)
    ],
    dtype=torch.float64,
)
E4M3_BYTES = torch.cat((E4M3, E4M3.new_full((1,), float("nan"))))
E4M3_BYTES = torch.cat((E4M3_BYTES, -E4M3_BYTES))
E2M1_BYTES = torch.stack([torch.cat((E2M1, -E2M1))[[b & 15, b >> 4]] for b in range(256)])
POWERS = torch.tensor([2.0 ** (b - 127) for b in range(255)] + [float("nan")], dtype=torch.float64)


class Blocks(NamedTuple):
    """Codes and scale bytes, uint8; one code per byte for FP8, two for FP4."""

    codes: Tensor
    scales: Tensor


def nearest(values: Tensor, grid: Tensor) -> Tensor:
    """Codes of the nearest magnitudes, ties to the even code, signs in the bit above."""
    middles = (grid[1:] + grid[:-1]) / 2
    magnitudes = values.double().abs()
    codes = torch.searchsorted(middles, magnitudes.contiguous())  # a tie stays below
    tie = codes < len(middles)
    tie &= middles[codes.clamp(max=len(middles) - 1)] == magnitudes
    codes = codes + (tie & (codes % 2 == 1))
    sign = 8 if len(grid) == 8 else 128
    return (codes + sign * values.signbit()).to(torch.uint8)


def ceil_log2(x: Tensor) -> Tensor:
    """The smallest e with 2^e >= x, found by comparing."""
    exponents = torch.arange(-149, 129, dtype=torch.float64)
    return torch.searchsorted(torch.exp2(exponents), x.double()) - 149


def _groups(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    groups = torch.unflatten(x.double(), -1, (-1, size))
    return groups, groups.abs().amax(-1)


def _over(amax: Tensor, largest: int) -> Tensor:
    """amax times the float32 reciprocal of the largest value, a float32 product."""
    return amax.float() * (torch.tensor(1.0) / torch.tensor(float(largest)))


def fp8(x: Tensor) -> Blocks:
    """Per 32 channels, power-of-two scale, amax floor 1e-4 (sections 4.9 and 5.2)."""
    groups, amax = _groups(x, 32)
    exponent = ceil_log2(_over(amax.clamp(min=1e-4), 448))
    codes = nearest(groups * torch.exp2(-exponent.double()).unsqueeze(-1), E4M3)
    return Blocks(codes.flatten(-2), (exponent + 127).to(torch.uint8))


def mxfp4(x: Tensor) -> Blocks:
    """Per 32 channels, power-of-two scale (section 5.4)."""
    groups, amax = _groups(x, 32)
    exponent = ceil_log2(_over(amax.clamp(min=6 * 2.0**-126), 6))
    codes = nearest(groups * torch.exp2(-exponent.double()).unsqueeze(-1), E2M1)
    return Blocks(_packed(codes.flatten(-2)), (exponent + 127).to(torch.uint8))


def nvfp4(x: Tensor) -> Blocks:
    """Per 16 channels, e4m3 scale, float32 product with the float32 reciprocal (section 5.3)."""
    groups, amax = _groups(x, 16)
    target = _over(amax.clamp(min=6 * 2.0**-9), 6).clamp(max=448)
    scales = nearest(target, E4M3)
    reciprocal = 1 / E4M3[scales.long()].float()
    codes = nearest(groups.float() * reciprocal.unsqueeze(-1), E2M1)
    return Blocks(_packed(codes.flatten(-2)), scales)


def _packed(codes: Tensor) -> Tensor:
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _scaled(values: Tensor, factors: Tensor, size: int) -> Tensor:
    return (torch.unflatten(values, -1, (-1, size)) * factors.unsqueeze(-1)).flatten(-2)


def fp8_values(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 values of FP8 with a scale byte per 32 channels of a row."""
    return _scaled(E4M3_BYTES[codes.long()], POWERS[scales.long()], 32)


def mxfp4_values(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 values of packed FP4 with a scale byte per 32 channels of a row."""
    return _scaled(E2M1_BYTES[codes.long()].flatten(-2), POWERS[scales.long()], 32)


def nvfp4_values(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 values of packed FP4 with an e4m3 scale per 16 channels."""
    return _scaled(E2M1_BYTES[codes.long()].flatten(-2), E4M3_BYTES[scales.long()], 16)


def on_fp8_grid(x: Tensor) -> bool:
    """Is x what it would be after a round trip through FP8 blocks? bf16 values hardly ever are."""
    return bool((fp8_values(*fp8(x)) == x.double()).all())


def to_bf16(x: Tensor) -> Tensor:
    """float64 rounded once to bf16's 8 significant bits, ties to even, as float64.

    torch converts float64 to bf16 by way of float32, which rounds twice.
    """
    fraction, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(fraction * 256), exponent - 8)
