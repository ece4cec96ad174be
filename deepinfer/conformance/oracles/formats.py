"""Byte formats by search: each code is the nearest of all code values; scales are exact.

Source: model specification, sections 4.9 and 5.1 to 5.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.formats import Scheme

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
E4M3 = torch.tensor(
    [
        (code % 8) * 2.0**-9 if code < 8 else (1 + code % 8 / 8) * 2.0 ** (code // 8 - 7)
        for code in range(127)
    ],
    dtype=torch.float64,
)
NAN = float("nan")


def encode(x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """The codes and scales, both uint8, of x [M, width].

    Arithmetic is in float32, for float64 values in float64.
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    groups = torch.unflatten(x.to(wide), 1, (-1, scheme.group_size))
    grid = E4M3 if scheme is Scheme.FP8_BLOCK32 else E2M1
    floor = {"fp8-ue8m0-32": 1e-4, "fp4-ue8m0-32": 6 * 2.0**-126, "fp4-e4m3-16": 6 * 2.0**-9}
    amax = groups.abs().amax(-1)
    broken = torch.isnan(groups).any(-1)
    amax = torch.maximum(
        torch.where(broken, torch.ones_like(amax), amax), amax.new_tensor(floor[scheme])
    )
    target = amax * amax.new_tensor(1.0 / float(grid[-1]))
    if scheme is Scheme.NVFP4:
        scales = _nearest(target.double(), E4M3)
        factor = E4M3[scales].to(wide)
        reciprocal = 1 / factor
        nan_scale = 127
    else:
        mantissa, exponent = torch.frexp(target.double())
        scales = (exponent.long() - (mantissa == 0.5).long() + 127).clamp(max=254)
        scales = torch.where(torch.isinf(target), 254, scales)
        reciprocal = torch.ldexp(torch.ones_like(target), (127 - scales))
        nan_scale = 255
    scaled = (groups * reciprocal.unsqueeze(-1)).double()
    codes = _nearest(torch.nan_to_num(scaled.abs(), nan=0.0), grid)
    sign = 8 if len(grid) == 8 else 128
    codes = codes + sign * torch.signbit(groups).long()
    codes = torch.where(broken.unsqueeze(-1), sign - 1, codes).flatten(1)
    scales = torch.where(broken, nan_scale, scales)
    if len(grid) == 8:
        codes = codes[:, ::2] + 16 * codes[:, 1::2]
    return codes.to(torch.uint8), scales.to(torch.uint8)


def decode(codes: Tensor, scales: Tensor, scheme: Scheme) -> Tensor:
    """The float64 values [M, width] of codes [M, bytes] and scales [M, groups]."""
    codes, scales = codes.long(), scales.long()
    if scheme is Scheme.FP8_BLOCK32:
        size = torch.cat((E4M3, E4M3.new_tensor([NAN])))[codes % 128]
        values = torch.where(codes >= 128, -size, size)
    else:
        codes = torch.stack((codes % 16, codes // 16), -1).flatten(1)
        values = torch.where(codes >= 8, -E2M1[codes % 8], E2M1[codes % 8])
    if scheme is Scheme.NVFP4:
        size = torch.cat((E4M3, E4M3.new_tensor([NAN])))[scales % 128]
        factor = torch.where(scales >= 128, -size, size)
    else:
        factor = torch.ldexp(torch.ones(scales.shape, dtype=torch.float64), scales - 127)
        factor = torch.where(scales == 255, NAN, factor)
    return values * factor.repeat_interleave(scheme.group_size, 1)


def bf16(x: Tensor) -> Tensor:
    """float64 values rounded to bf16 (8 significant bits, ties to even), kept in float64."""
    mantissa, exponent = torch.frexp(x)
    rounded = torch.ldexp(torch.round(mantissa * 256), exponent - 8)
    return torch.where(torch.isfinite(x) & (x != 0), rounded, x)


def _nearest(x: Tensor, grid: Tensor) -> Tensor:
    """The index of the grid value nearest to each x >= 0; of two equally near, the even index."""
    distance = (x.clamp(max=float(grid[-1])).unsqueeze(-1) - grid).abs()
    low = distance.argmin(-1)  # argmin returns the first of equal ones
    high = (low + 1).clamp(max=len(grid) - 1)
    tied = distance.gather(-1, low.unsqueeze(-1)) == distance.gather(-1, high.unsqueeze(-1))
    return torch.where(tied.squeeze(-1) & (low % 2 == 1), high, low)
