"""The formulas of the model in float64, as the specification writes them, one row at a time.

Nothing here is shared with the engine. Where bf16 rounding inside an operator is part of its
definition (index scores), it is done by `codes.to_bf16`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tests.numerics.codes import to_bf16

EPS = 1e-20


def frequencies(
    theta: float, channels: int, yarn: tuple[float, int, float, float] | None
) -> Tensor:
    """Inverse frequencies (4.3). yarn: factor, original length, beta_fast, beta_slow."""
    pairs = torch.arange(channels // 2, dtype=torch.float64)
    inverse = theta ** (-2 * pairs / channels)
    if yarn is None:
        return inverse
    factor, original, fast, slow = yarn

    def pair(beta: float) -> float:
        return channels * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), channels - 1)
    ramp = ((pairs - low) / (high - low)).clamp(0, 1)
    return inverse / factor * ramp + inverse * (1 - ramp)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Rows divided by their root mean square, times the weight (3.1)."""
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


def rope(
    x: Tensor, positions: Tensor, inverse_frequencies: Tensor, inverse: bool = False
) -> Tensor:
    """Adjacent pairs of the last channels turned by a float32 angle (4.3)."""
    angle = (positions.float().unsqueeze(-1) * inverse_frequencies.float()).double()
    angle = -angle if inverse else angle
    turn = torch.polar(torch.ones_like(angle), angle)
    while turn.dim() < x.dim():
        turn = turn.unsqueeze(1)
    kept = x.shape[-1] - 2 * len(inverse_frequencies)
    pairs = torch.view_as_complex(torch.unflatten(x[..., kept:], -1, (-1, 2)).contiguous())
    return torch.cat((x[..., :kept], torch.view_as_real(pairs * turn).flatten(-2)), -1)


class Mix(NamedTuple):
    pre: Tensor
    post: Tensor
    comb: Tensor


def mix(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, eps: float
) -> Mix:
    """Single-pass hyper-connection weights (3.3)."""
    count = streams.shape[1]
    flat = streams.flatten(1)
    m = flat @ fn.double().T * (flat.square().mean(-1, keepdim=True) + EPS).rsqrt()
    of_output = torch.tensor([0] * count + [1] * count + [2] * count * count)
    a = base.double() + m * scale.double()[of_output]
    comb = torch.softmax(a[:, 2 * count :].view(-1, count, count), -1) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return Mix(a[:, :count].sigmoid() + eps, 2 * a[:, count : 2 * count].sigmoid(), comb)


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Streams read by the pre mix (3.4)."""
    return torch.einsum("tsh,ts->th", streams, pre.double())


def expand(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """A sub-layer's output written into the streams (3.4)."""
    kept = torch.einsum("tmn,tmh->tnh", comb.double(), streams)
    return kept + post.double().unsqueeze(-1) * out.unsqueeze(1)


def merge(values: Tensor, gates: Tensor) -> Tensor:
    """Members [T, r, D] of a compression group to one latent: softmax per channel (4.4)."""
    return (values * torch.softmax(gates, 1)).sum(1)


def index_scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """Sum of relu(query . key) * weight, unrounded: [Hi, I], [G, I], [Hi] -> [G] (4.5)."""
    return (queries @ keys.T).relu().T @ weights


def lane_scores(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """The INFER form: bf16 relu, bf16 fused multiply-adds in four lanes of heads (4.5)."""
    terms = to_bf16((queries @ keys.T).relu())  # [Hi, G]
    lanes = [torch.zeros(len(keys), dtype=torch.float64) for _ in range(4)]
    for head, term in enumerate(terms):
        lanes[head % 4] = to_bf16(term * weights[head] + lanes[head % 4])
    return to_bf16(to_bf16(lanes[0] + lanes[2]) + to_bf16(lanes[1] + lanes[3]))


def rounded_scores(queries: Tensor, keys: Tensor, weights: Tensor, scale: float) -> Tensor:
    """The REF form in bf16: dot products and terms rounded, the float sum rounded (4.5)."""
    terms = to_bf16(queries @ keys.T).relu() * to_bf16(weights * scale).unsqueeze(-1)
    return to_bf16(to_bf16(terms).sum(0))


def best(scores: list[float], k: int) -> list[int]:
    """Places of the k highest scores above -inf, the lower place among equals, ascending."""
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return sorted(place for place in order[:k] if scores[place] > -math.inf)


def best_blocks(scores: list[float], size: int, k: int) -> list[int]:
    """Candidate blocks of one row's visible scores; the last one always stays (4.6)."""
    blocks = [max(scores[i : i + size]) for i in range(0, len(scores), size)]
    if blocks:
        blocks[(len(scores) - 1) // size] = math.inf
    return best(blocks, k)


class Attended(NamedTuple):
    """One row's attention: result [A, D], and the sum of |probability * key| beside it."""

    values: Tensor
    weight: Tensor
    logit_size: float


def attend(queries: Tensor, keys: Tensor, sink: Tensor, scale: float) -> Attended:
    """Softmax over keys and sink of one row: queries [A, D], keys [K, D], sink [A] (4.7)."""
    logits = torch.cat((queries @ keys.T * scale, sink.double().unsqueeze(-1)), -1)
    shares = torch.softmax(logits, -1)[:, :-1]
    size = (queries.abs() @ keys.abs().T * scale).max() if len(keys) else torch.tensor(0.0)
    return Attended(shares @ keys, shares @ keys.abs(), float(size))


class Routed(NamedTuple):
    """Experts [T, k], best first, their weights, and the margin of the choice [T]."""

    ids: Tensor
    weights: Tensor
    margin: Tensor


def route(logits: Tensor, bias: Tensor, k: int, scale: float) -> Routed:
    """Router of text tokens (7.1)."""
    scores = torch.log1p(torch.exp(logits)).sqrt()
    chosen = scores + bias.double()
    ids = torch.tensor([sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in chosen])
    ordered = chosen.sort(-1, descending=True).values
    weights = scores.gather(1, ids)
    gaps = ordered[:, :k] - ordered[:, 1 : k + 1] if ordered.shape[1] > k else ordered[:, :1]
    return Routed(ids, weights / weights.sum(-1, keepdim=True) * scale, gaps.amin(-1))


def swiglu(gate: Tensor, up: Tensor, limit: float, weights: Tensor | None) -> Tensor:
    """Clamped SwiGLU times the routing weight, unrounded (7.2)."""
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    hidden = gate / (1 + torch.exp(-gate)) * up
    return hidden if weights is None else hidden * weights.double().unsqueeze(-1)


def ngram_rows(
    ids: list[int], multipliers: list[int], primes: list[int], pad: int, heads: int
) -> list[int]:
    """Table rows of one token (8.5): ids of the token and those before it, -1 where blocked."""
    known = [pad if any(i < 0 for i in ids[: k + 1]) else ids[k] for k in range(len(ids))]
    rows, mixed, offset = [], known[0] * multipliers[0], 0
    for k in range(1, len(ids)):
        mixed ^= known[k] * multipliers[k]
        for prime in primes[(k - 1) * heads : k * heads]:
            rows.append(mixed % prime + offset)
            offset += prime
    return rows


class Injected(NamedTuple):
    """Streams after Engram, unrounded, and how far float32 may move them."""

    streams: Tensor
    slack: Tensor


def inject(streams: Tensor, memory: Tensor, q: Tensor, k: Tensor) -> Injected:
    """Gated memory added to every stream (8.7).

    slack: the match of stream and key is a float32 sum of H terms; the gate's root makes its
    error large near a match of zero.
    """
    count, width = streams.shape[1:]
    keys, value = memory.view(-1, count + 1, width).split((count, 1), 1)
    products = streams * q.double() * k.double() * keys

    def rescaled(x: Tensor) -> Tensor:
        norms = [(part.square().mean(-1) + EPS).rsqrt() for part in (streams, keys)]
        return x * norms[0] * norms[1] * width**-0.5

    match = rescaled(products.sum(-1))
    error = 4 * width**0.5 * 2.0**-24 * rescaled(products.square().sum(-1).sqrt())
    signed = torch.copysign(match.abs().clamp(min=1e-6).sqrt(), match)
    gate = signed.sigmoid().unsqueeze(-1)
    root = match.abs().clamp(min=1e-6).sqrt()
    moved = torch.where(match.abs() > error, error / root, 2 * (match.abs() + error).sqrt())
    return Injected(streams + gate * value, (moved / 4).unsqueeze(-1) * value.abs())
