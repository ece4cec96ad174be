"""Index scores and selection, row by row; sums are exact and rounded where the rule rounds.

Source: model specification, sections 4.5 and 4.6.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.backend import Batch, Numerics, Region
from deepinfer.conformance.oracles import pages
from deepinfer.conformance.oracles.formats import bf16, decode
from deepinfer.formats import Quantised, Scheme

LARGEST_BF16 = float(torch.finfo(torch.bfloat16).max)
INF = math.inf


def index_scores(
    queries: Quantised,
    weights: Tensor,
    scale: float,
    keys: Region,
    visible: Tensor,
    width: int,
    batch: Batch,
    numerics: Numerics,
) -> Tensor:
    """Scores [T, width] in the weights' dtype, one row at a time."""
    rows = torch.full((batch.num_rows, width), -INF, dtype=torch.float64)
    read: dict[int, Tensor] = {}
    for row in range(batch.num_rows):
        owner, count = int(batch.sequence[row]), min(width, int(visible[row]))
        if owner < 0 or count <= 0:
            continue
        if owner not in read:
            entries = torch.arange(min(width, int(visible[batch.sequence == owner].max())))
            read[owner] = pages.read(keys, batch, torch.full_like(entries, owner), entries)
        key = read[owner][:count]
        query = decode(queries.codes[row], queries.scales[row], Scheme.MXFP4)  # [Hi, I]
        dots = query @ key.T  # [Hi, count]
        dots = torch.where(dots < 0, 0.0, dots)
        weight = weights[row].double()
        if numerics is Numerics.REF:
            weight = weight * scale
        if weights.dtype != torch.bfloat16:
            rows[row, :count] = weight @ dots
        elif numerics is Numerics.REF:
            terms = bf16(bf16(dots) * bf16(weight).unsqueeze(-1))
            rows[row, :count] = bf16(terms.sum(0))
        else:
            rows[row, :count] = _lanes(bf16(dots), weight)
    return rows.to(weights.dtype)


def _lanes(terms: Tensor, weights: Tensor) -> Tensor:
    """Sum the heads of each lane, h mod 4, in ascending order; each step is rounded to bf16."""
    lanes = [torch.zeros_like(terms[0]) for _ in range(4)]
    for head in range(len(terms)):
        lanes[head % 4] = bf16(terms[head] * weights[head] + lanes[head % 4])
    return bf16(bf16(lanes[0] + lanes[2]) + bf16(lanes[1] + lanes[3]))


def top(scores: Tensor, visible: Tensor, k: int, candidates: Tensor | None, size: int) -> Tensor:
    """The k best entries of each row, sorted by score descending, then column ascending."""
    found = []
    for row, values in enumerate(scores.tolist()):
        allowed = range(min(len(values), int(visible[row])))
        if candidates is None:
            columns = list(allowed)
        else:
            blocks = set(candidates[row].tolist())
            columns = [column for column in allowed if column // size in blocks]
        found.append(_best({column: values[column] for column in columns}, k))
    return torch.tensor(found, dtype=torch.int32).view(len(scores), k)


def best_blocks(scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
    """The k best blocks of each row, always with the block of the last visible entry."""
    found = []
    for row, values in enumerate(scores.tolist()):
        count = min(len(values), int(visible[row]))
        best: dict[int, float] = {}
        for column in range(count):
            if not math.isnan(values[column]):
                capped = min(values[column], LARGEST_BF16)
                best[column // size] = max(best.get(column // size, -INF), capped)
        if count:
            best[(count - 1) // size] = INF
        found.append(_best(best, k))
    return torch.tensor(found, dtype=torch.int32).view(len(scores), k)


def _best(scores: dict[int, float], k: int) -> list[int]:
    """The keys of the k highest scores above -inf, ascending, filled with -1.

    Of equal scores the lower key is kept.
    """
    kept = [key for key, score in scores.items() if score > -INF]
    chosen = sorted(sorted(kept, key=lambda key: (-scores[key], key))[:k])
    return chosen + [-1] * (k - len(chosen))
