"""Norms, matmuls and rotations of rows in float64, rounded where the contract rounds.

Source: model specification, sections 3.1, 4.2, 4.3 and 9.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Activation, LinearSource
from deepinfer.conformance.oracles.blocks import quantised
from deepinfer.conformance.oracles.stored import consumed, stored_matrix
from deepinfer.formats import Scheme


def product(a: Activation, w: LinearSource, out: torch.dtype) -> Tensor:
    """The product [T, M] of a [T, K] and a published matrix [M, K], transposed."""
    return (consumed(a, w.kind) @ weight_for(w, out).T).to(out)


def grouped_product(a: Activation, w: LinearSource, out: torch.dtype) -> Tensor:
    """The products [T, G, M] of a [T, G, K] and, for each group, its block of matrix rows."""
    x = consumed(a, w.kind)
    groups = x.shape[1]
    weight = weight_for(w, out)
    weight = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1])
    return torch.einsum("tgk,gmk->tgm", x, weight).to(out)


def weight_for(w: LinearSource, out: torch.dtype) -> Tensor:
    """The weight as float64; a float32 weight is rounded to bf16 where the output is bf16."""
    if w.kind == "fp32" and out == torch.bfloat16:
        return w.weight.read().bfloat16().double()
    return stored_matrix(w)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, rounded once to x's dtype."""
    values = x.double()
    root = ((values * values).mean(-1, keepdim=True) + eps).rsqrt()
    return (values * root * weight.double()).to(x.dtype)


def block_scaled(x: Tensor, scheme: Scheme | None) -> Activation:
    """An activation of x with its quantised half."""
    if scheme is None:
        return Activation(x)
    return Activation(x, quantised(x, scheme), scheme)


def rotated(x: Tensor, positions: Tensor, frequencies: Tensor, inverse: bool) -> Tensor:
    """x with its last channels, as complex numbers, times e^(i angle); the angle is a float32."""
    count = 2 * frequencies.shape[0]
    angle = (positions.float()[:, None] * frequencies.float()).double()
    turn = torch.polar(torch.ones_like(angle), -angle if inverse else angle)
    turn = turn.reshape(turn.shape[0], *[1] * (x.dim() - 2), turn.shape[1])
    kept, pairs = x[..., : x.shape[-1] - count], x[..., x.shape[-1] - count :].double()
    turned = torch.view_as_complex(pairs.reshape(*pairs.shape[:-1], count // 2, 2)) * turn
    return torch.cat((kept, torch.view_as_real(turned).flatten(-2).to(x.dtype)), -1)
