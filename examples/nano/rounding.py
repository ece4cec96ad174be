"""Rounding to FP8 and FP4 of what is cached, with the gradient passed through unchanged.

The values are those of `deepinfer.formats.round_trip`; a test compares them. This is the same
arithmetic in fewer operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer.formats import Scheme


def power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two that is not below x (float32, positive, normal)."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def round_e2m1(x: Tensor) -> Tensor:
    """x to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with its sign, ties to even, saturating."""
    magnitude = x.abs().clamp_(max=6)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return torch.copysign((magnitude / step).round_().mul_(step), x)


def _round(x: Tensor, scheme: Scheme) -> Tensor:
    groups = x.unflatten(-1, (-1, scheme.group_size))
    amax = groups.abs().amax(-1, keepdim=True)
    if scheme is Scheme.FP8_BLOCK32:
        scale = power_of_two_above(amax.clamp_(min=1e-4) * (1 / 448))
        rounded = (groups / scale).clamp_(-448, 448).to(torch.float8_e4m3fn).float()
    elif scheme is Scheme.MXFP4:
        scale = power_of_two_above(amax.clamp_(min=1e-30) * (1 / 6))
        rounded = round_e2m1(groups / scale)
    else:
        scale = (amax.clamp_(min=6 * 2.0**-9) * (1 / 6)).clamp_(max=448)
        scale = scale.to(torch.float8_e4m3fn).float()
        rounded = round_e2m1(groups * (1 / scale))
    return (rounded * scale).flatten(-2)


class _Straight(torch.autograd.Function):
    """The rounded values forward, the gradient of the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scheme: Scheme) -> Tensor:
        return _round(x, scheme)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def cached(x: Tensor, scheme: Scheme) -> Tensor:
    """What a reader of the cache sees of x [..., n], float32."""
    rounded: Tensor = _Straight.apply(x, scheme)  # type: ignore[no-untyped-call]
    return rounded
