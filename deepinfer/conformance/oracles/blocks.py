"""Block quantisation by its definition: group maximum, scale, nearest element, ties to even.

Source: model specification, sections 4.9 and 5.2 to 5.4. Group maxima and scales are formed in
float32 (float64 for float64 values), as the specification does; rounding to elements is spelled out
in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.conformance.oracles.stored import E2M1, e4m3
from deepinfer.formats import Quantised, Scheme

FLOORS = {Scheme.FP8_BLOCK32: 1e-4, Scheme.MXFP4: 6 * 2.0**-126, Scheme.NVFP4: 6 * 2.0**-9}


def quantised(x: Tensor, scheme: Scheme) -> Quantised:
    """The codes and scales of values [..., K]."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    size = 16 if scheme is Scheme.NVFP4 else 32
    groups = x.to(dtype).reshape(*x.shape[:-1], x.shape[-1] // size, size)
    bad = groups.isnan().any(-1)
    groups = torch.where(bad[..., None], torch.zeros_like(groups), groups)
    largest = 448.0 if scheme is Scheme.FP8_BLOCK32 else 6.0
    floor = torch.tensor(FLOORS[scheme], dtype=dtype)
    amax = torch.maximum(groups.abs().amax(-1), floor)
    target = amax * (torch.ones((), dtype=dtype) / largest)
    if scheme is Scheme.NVFP4:
        scales = nearest_e4m3(target.double())
        scaled = groups * (torch.ones((), dtype=dtype) / e4m3(scales).to(dtype))[..., None]
        scales = torch.where(bad, 0x7F, scales.int()).to(torch.uint8)
    else:
        exponents = smallest_exponent(target.double())
        scaled = torch.ldexp(groups.double(), -exponents[..., None])
        scales = torch.where(bad, 255, exponents + 127).to(torch.uint8)
    if scheme is Scheme.FP8_BLOCK32:
        codes = torch.where(bad[..., None], 0x7F, nearest_e4m3(scaled.double()).int())
        return Quantised(codes.to(torch.uint8).flatten(-2), scales)
    nibbles = torch.where(bad[..., None], 7, nearest_e2m1(scaled.double())).flatten(-2)
    return Quantised((nibbles[..., ::2] + 16 * nibbles[..., 1::2]).to(torch.uint8), scales)


def smallest_exponent(target: Tensor) -> Tensor:
    """The least integer e with 2^e >= target, at most 127."""
    finite = torch.where(target.isinf(), torch.full_like(target, 2.0**127), target)
    fraction, exponent = torch.frexp(finite)
    return torch.where(fraction == 0.5, exponent - 1, exponent).clamp(-127, 127)


def nearest_e4m3(x: Tensor) -> Tensor:
    """The e4m3 bytes nearest to float64 values, which saturate at 448."""
    size = x.abs().clamp(max=448.0)
    exponent = (torch.frexp(size).exponent - 1).clamp(min=-6)
    step = torch.ldexp(torch.ones_like(size), exponent - 3)
    rounded = torch.copysign(torch.round(size / step) * step, x)
    return rounded.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def nearest_e2m1(x: Tensor) -> Tensor:
    """The e2m1 codes nearest to float64 values, by comparison with all eight magnitudes."""
    grid = torch.tensor(E2M1, dtype=torch.float64)
    distance = (x.abs().clamp(max=6.0)[..., None] - grid).abs()
    odd = torch.arange(8) % 2
    least = distance.amin(-1, keepdim=True)
    code = torch.where(distance == least, odd, 9).argmin(-1)
    return code + 8 * torch.signbit(x).long()
