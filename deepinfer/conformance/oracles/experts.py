"""The mixture of experts by its formulas, a row at a time and in float64.

Values are rounded where the model specification rounds them (sections 7.1 to 7.3), not elsewhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    ExpertSource,
    Numerics,
    Routing,
    accumulation_dtype,
)
from deepinfer.conformance.oracles.blocks import quantised
from deepinfer.conformance.oracles.rows import weight_for
from deepinfer.conformance.oracles.stored import block_values
from deepinfer.formats import Scheme


def score(logit: float) -> float:
    """sqrt(ln(1 + e^logit))."""
    return math.sqrt(max(logit, 0.0) + math.log1p(math.exp(-abs(logit))))


def route(
    logits: Tensor, bias: Tensor, image_bias: Tensor, image_mask: Tensor, k: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The chosen ids [T, k] int32 and weights [T, k] float64 for logits [T, E] without NaN."""
    ids, weights = [], []
    for row, image in zip(logits.tolist(), image_mask.tolist(), strict=True):
        added = (image_bias if image else bias).tolist()
        scores = [score(logit) for logit in row]
        order = sorted(range(len(row)), key=lambda e: (-(scores[e] + added[e]), e))[:k]
        total = math.fsum(scores[e] for e in order)
        ids.append(order)
        weights.append([scores[e] / total * scale for e in order])
    return (
        torch.tensor(ids, dtype=torch.int32).reshape(len(logits), k),
        torch.tensor(weights, dtype=torch.float64).reshape(len(logits), k),
    )


def through_fp8(x: Tensor) -> Tensor:
    """Values [..., n] after a round trip through FP8 blocks of 32 channels, float64."""
    return block_values(quantised(x, Scheme.FP8_BLOCK32), Scheme.FP8_BLOCK32)


def gated(gate: Tensor, up: Tensor, limit: float, weights: Tensor | None) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit) * weights in float64."""
    gate, up = gate.double(), up.double()
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    hidden = gate / (1 + torch.exp(-gate)) * up
    return hidden if weights is None else hidden * weights.double()[..., None]


def consumed(a: Activation, kind: str) -> Tensor:
    """The float64 values that a matmul with weights of this kind reads of its input."""
    if a.quantised is None or kind not in ("fp8", "fp4"):
        return a.values.double()
    return through_fp8(a.values.to(accumulation_dtype(a.dtype)))


class Matrices(NamedTuple):
    """The three matrices of an expert in float64, and whether INFER quantises their inputs."""

    w1: Tensor
    w2: Tensor
    w3: Tensor
    quantised: bool

    @classmethod
    def of(cls, source: ExpertSource, dtype: torch.dtype) -> Matrices:
        """Decode the matrices of a published expert."""
        w1, w2, w3 = (weight_for(part, dtype) for part in (source.w1, source.w2, source.w3))
        return cls(w1, w2, w3, source.w1.kind in ("fp8", "fp4"))


def expert(
    x: Tensor,
    matrices: Matrices,
    limit: float,
    weights: Tensor | None,
    numerics: Numerics,
    dtype: torch.dtype,
) -> Tensor:
    """The outputs of one expert for rows x [n, H] float64, rounded to the compute precision."""
    gate = (x @ matrices.w1.T).to(dtype)
    up = (x @ matrices.w3.T).to(dtype)
    hidden = gated(gate, up, limit, weights)
    if numerics is Numerics.INFER and matrices.quantised:
        hidden = through_fp8(hidden.to(accumulation_dtype(dtype)))
    else:
        hidden = hidden.to(dtype).double()
    return (hidden @ matrices.w2.T).to(dtype)


def experts(
    a: Activation,
    routing: Routing,
    sources: tuple[ExpertSource, ...],
    limit: float,
    numerics: Numerics,
) -> Tensor:
    """The outputs [T, k, H] of all (row, choice) pairs, each computed alone."""
    rows, k = routing.ids.shape
    out = torch.zeros(rows, k, a.values.shape[-1], dtype=a.dtype)
    x = consumed(a, sources[0].w1.kind)
    decoded = {e: Matrices.of(sources[e], a.dtype) for e in set(routing.ids.flatten().tolist())}
    for row in range(rows):
        for place in range(k):
            one = decoded[int(routing.ids[row, place])]
            weight = routing.weights[row, place : place + 1]
            out[row, place] = expert(x[row : row + 1], one, limit, weight, numerics, a.dtype)[0]
    return out


def combine(outputs: Tensor, ids: Tensor, shared: Tensor, numerics: Numerics) -> Tensor:
    """Sum of each row's outputs [T, k, H] in ascending order of expert, then the shared [T, H].

    Every addition is made in float64 and rounded to the precision of sums. For float32 this equals
    an addition in float32.
    """
    dtype = shared.dtype
    wide = accumulation_dtype(dtype)
    rows = []
    for row, order in enumerate(ids.tolist()):
        total = torch.zeros(shared.shape[1], dtype=wide)
        for count, place in enumerate(sorted(range(len(order)), key=lambda p: order[p])):
            term = outputs[row, place].to(wide)
            total = term if count == 0 else (total.double() + term.double()).to(wide)
        if numerics is Numerics.REF:
            total = total.to(dtype)
        rows.append((total.double() + shared[row].double()).to(wide).to(dtype))
    return torch.stack(rows) if rows else shared[:0]
