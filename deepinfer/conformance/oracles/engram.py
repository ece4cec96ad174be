"""Engram by its formulas: hashes in Python integers, the gate in float64.

Source: model specification, section 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import NgramHash


def hashed(history: Tensor, hash: NgramHash) -> Tensor:
    """The table rows of the n-grams of each token, one token, order and head at a time."""
    multipliers, primes = hash.multipliers.tolist(), hash.primes.tolist()
    offsets = hash.offsets.tolist()
    rows = []
    for token in history.tolist():
        ids = list(token)
        for place, value in enumerate(ids):
            if value < 0:
                ids[place:] = [hash.pad] * (len(ids) - place)
                break
        columns = []
        for order in range(2, len(ids) + 1):
            mixed = 0
            for place in range(order):
                mixed ^= ids[place] * multipliers[place]
            for head in range(hash.heads):
                column = (order - 2) * hash.heads + head
                columns.append(mixed % primes[column] + offsets[column])
        rows.append(columns)
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), len(primes))


def injected(
    streams: Tensor,
    memory: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    blocked: Tensor,
) -> Tensor:
    """The streams with the gated memory added."""
    count, width = streams.shape[1:]
    x = streams.double()
    parts = memory.double().reshape(-1, count + 1, width)
    keys, value = parts[:, :-1], parts[:, -1:]
    weights = q_weight.double() * k_weight.double()
    match = torch.einsum("tsh,sh,tsh->ts", x, weights, keys)
    match = match * ((x * x).mean(2) + eps).rsqrt() * ((keys * keys).mean(2) + eps).rsqrt()
    match = match / width**0.5
    gate = torch.sigmoid(torch.copysign(match.abs().clamp(min=1e-6).sqrt(), match))
    added = (x + gate[:, :, None] * value).to(streams.dtype)
    return torch.where(blocked[:, None, None], streams, added)
