"""The float64 values of published matrices and activations, decoded by PyTorch's 8-bit types.

Source: model specification, section 2.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Activation, LinearSource
from deepinfer.formats import Quantised, Scheme

TILE = 32
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(codes: Tensor) -> Tensor:
    """The values of e4m3 bytes."""
    return codes.view(torch.float8_e4m3fn).double()


def power_of_two(scales: Tensor) -> Tensor:
    """The values of ue8m0 bytes: 2^(byte - 127), NaN for 255."""
    exponents = scales.to(torch.int32) - 127
    values = torch.ldexp(torch.ones(scales.shape, dtype=torch.float64), exponents)
    return torch.where(scales == 255, torch.full_like(values, float("nan")), values)


def e2m1_pairs(packed: Tensor) -> Tensor:
    """The values [..., n] of packed e2m1 bytes [..., n / 2]; even ones are in the low nibble."""
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64)
    wide = packed.to(torch.int64)
    return torch.stack((values[wide % 16], values[wide // 16]), -1).flatten(-2)


def stored_matrix(source: LinearSource, *, per_row: bool = False) -> Tensor:
    """A published matrix or table as float64 [M, K]. per_row: scales are per row, as in tables."""
    weight = source.weight.read()
    if source.scale is None:
        return weight.double()
    scales = power_of_two(source.scale.read()).repeat_interleave(TILE, 1)
    if source.kind == "fp4":
        return e2m1_pairs(weight) * scales
    if not per_row:
        scales = scales.repeat_interleave(TILE, 0)
    rows, columns = weight.shape
    return e4m3(weight) * scales[:rows, :columns]


def block_values(quantised: Quantised, scheme: Scheme) -> Tensor:
    """The float64 values of block-quantised bytes."""
    if scheme is Scheme.FP8_BLOCK32:
        values, factors, size = e4m3(quantised.codes), power_of_two(quantised.scales), 32
    elif scheme is Scheme.MXFP4:
        values, factors, size = e2m1_pairs(quantised.codes), power_of_two(quantised.scales), 32
    else:
        values, factors, size = e2m1_pairs(quantised.codes), e4m3(quantised.scales), 16
    return values * factors.repeat_interleave(size, -1)


def consumed(a: Activation, kind: str) -> Tensor:
    """The half of an activation that a matmul with weights of this kind reads, as float64."""
    if kind in ("fp8", "fp4") and a.quantised is not None and a.scheme is not None:
        return block_values(a.quantised, a.scheme)
    return a.values.double()
