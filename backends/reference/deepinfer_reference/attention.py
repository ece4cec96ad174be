"""Attention family of the reference: index scores, selection, sparse attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.backend import (
    Activation,
    Attention,
    Batch,
    Numerics,
    Region,
    Selection,
    WindowSpan,
    accumulation_dtype,
)
from deepinfer.formats import dequantise
from deepinfer_reference.cache import load_entries
from deepinfer_reference.tiling import COLUMNS, aligned, row_tiles

LANES = 4  # independent sums of heads in the INFER index score
LARGEST_BF16 = torch.finfo(torch.bfloat16).max


class ReferenceAttention(Attention):
    """Operators that read the caches."""

    def index_scores(
        self,
        queries: Activation,
        weights: Tensor,
        scale: float,
        keys: Region,
        visible: Tensor,
        width: int,
        batch: Batch,
        numerics: Numerics,
    ) -> Tensor:
        """Column tiles of 128: each decodes its keys once per sequence, then meets every row."""
        if batch.num_rows == 0 or width == 0:
            return weights.new_empty((batch.num_rows, width))
        wide = accumulation_dtype(weights.dtype)
        assert queries.quantised is not None
        assert queries.scheme is not None
        heads = dequantise(*queries.quantised, queries.scheme, wide)  # [T, Hi, I]
        if numerics is Numerics.REF:
            weights = weights * scale
        sequences = torch.arange(batch.num_sequences, device=weights.device)
        parts = []
        for start in range(0, width, COLUMNS):
            columns = torch.arange(start, start + COLUMNS, device=weights.device)
            entries = columns.expand(batch.num_sequences, -1)
            of_sequence = sequences.unsqueeze(-1).expand_as(entries)
            decoded = load_entries(keys, of_sequence, entries, batch, wide)  # [N, 128, I]

            def tile(
                heads: Tensor,
                weights: Tensor,
                visible: Tensor,
                sequence: Tensor,
                decoded: Tensor = decoded,
                columns: Tensor = columns,
            ) -> Tensor:
                own = decoded.index_select(0, sequence.clamp(min=0))  # [16, 128, I]
                dots = torch.bmm(heads, own.transpose(1, 2))  # [16, Hi, 128]
                scores = _score(dots, weights.unsqueeze(-1), numerics)
                seen = (columns < visible.unsqueeze(-1)) & (sequence >= 0).unsqueeze(-1)
                return scores.masked_fill(~seen, float("-inf"))

            parts.append(row_tiles(tile, heads, weights, visible, batch.sequence))
        return torch.cat(parts, 1)[:, :width]

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        """Best score per block, the block of the last visible entry above all."""
        count = -(-scores.shape[1] // size)
        missing = count * size - scores.shape[1]
        seen = torch.arange(scores.shape[1], device=scores.device) < visible.unsqueeze(-1)
        selectable = _selectable(scores).masked_fill(~seen, float("-inf"))
        padded = functional.pad(selectable, (0, missing), value=float("-inf"))
        best = padded.view(scores.shape[0], count, size).amax(-1).clamp(max=LARGEST_BF16)
        blocks = torch.arange(count, device=scores.device)
        last = torch.div(visible - 1, size, rounding_mode="floor").unsqueeze(-1)
        return _best(best.masked_fill(blocks == last, float("inf")), k)

    def top(
        self, scores: Tensor, visible: Tensor, k: int, candidates: Tensor | None, size: int
    ) -> Tensor:
        """Invisible entries and those of other blocks never take part."""
        width = scores.shape[1]
        entries = torch.arange(width, device=scores.device)
        allowed = entries < visible.unsqueeze(-1)
        if candidates is not None:
            blocks = -(-width // size)
            kept = torch.zeros(scores.shape[0], blocks + 1, dtype=torch.bool, device=scores.device)
            kept.scatter_(1, torch.where(candidates < 0, blocks, candidates).long(), True)
            allowed = allowed & kept[:, :blocks].repeat_interleave(size, 1)[:, :width]
        return _best(_selectable(scores).masked_fill(~allowed, float("-inf")), k)

    def attend(
        self,
        queries: Tensor,
        window: Region,
        span: WindowSpan,
        main: Region | None,
        selection: Selection | None,
        sink: Tensor,
        scale: float,
        batch: Batch,
    ) -> Tensor:
        """Gather the full width of keys for each row, masked, then softmax and sum.

        Order of the keys: window ascending, then selected entries ascending. Probabilities stay
        in the accumulation precision.
        """
        if batch.num_rows == 0:
            return torch.empty_like(queries)
        wide = accumulation_dtype(queries.dtype)
        columns = torch.arange(aligned(span.width), device=queries.device)
        sink = sink.to(wide).view(1, -1, 1)
        rows = [queries, batch.sequence, span.first, span.last]
        if selection is not None:
            missing = -selection.indices.shape[1] % aligned(1)
            rows.append(functional.pad(selection.indices, (0, missing), value=-1))

        def tile(
            queries: Tensor,
            sequence: Tensor,
            first: Tensor,
            last: Tensor,
            chosen: Tensor | None = None,
        ) -> Tensor:
            entries = first.unsqueeze(-1) + columns
            entries = torch.where(entries <= last.unsqueeze(-1), entries, -1)
            keys = _keys(window, sequence, entries, batch, wide)
            if main is not None and chosen is not None:
                chosen = chosen.long()
                keys = torch.cat((keys, _keys(main, sequence, chosen, batch, wide)), 1)
                entries = torch.cat((entries, chosen), 1)
            seen = (entries >= 0) & (sequence >= 0).unsqueeze(-1)
            logits = torch.bmm(queries.to(wide), keys.transpose(1, 2)) * scale
            logits = logits.masked_fill(~seen.unsqueeze(1), float("-inf"))
            return _softmax_sum(logits, sink, keys).to(queries.dtype)

        return row_tiles(tile, *rows)


def _keys(
    region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
) -> Tensor:
    """Entries [16, K] of each row's sequence: -> [16, K, D]."""
    of_row = sequence.unsqueeze(-1).expand_as(entries)
    return load_entries(region, of_row, entries, batch, dtype)


def _softmax_sum(logits: Tensor, sink: Tensor, keys: Tensor) -> Tensor:
    """Softmax over keys and sink [.., A, 1], weighted sum of the keys: [16, A, K] -> [16, A, D].

    The largest of logits and sink is subtracted; it is kept finite, so that a row without keys
    and with a sink of -inf gives zeros too.
    """
    largest = torch.maximum(logits.amax(-1, keepdim=True), sink)
    largest = largest.clamp(min=torch.finfo(logits.dtype).min)
    weights = torch.exp(logits - largest)
    total = weights.sum(-1, keepdim=True) + torch.exp(sink - largest)
    return torch.bmm(weights / total.masked_fill(total == 0, 1), keys)


def _score(dots: Tensor, weights: Tensor, numerics: Numerics) -> Tensor:
    """Heads [16, Hi, columns] to scores [16, columns] in the weights' dtype (4.5)."""
    dtype = weights.dtype
    if dtype != torch.bfloat16:
        return (dots.clamp(min=0) * weights).sum(1)
    if numerics is Numerics.REF:
        terms = dots.to(dtype).clamp(min=0) * weights
        return terms.float().sum(1).to(dtype)
    return _lane_score(dots.clamp(min=0).to(dtype), weights)


def _lane_score(terms: Tensor, weights: Tensor) -> Tensor:
    """Four lanes of heads, each a chain of bf16 fused multiply-adds, then bf16 sums of lanes.

    A fused multiply-add is computed in float64, where the product of two bf16 values is exact, and
    rounded to bf16 once. It differs from a true one only where one operand of the sum is 2^37 times
    smaller than the other and decides a tie.
    """
    missing = -terms.shape[1] % LANES
    padding = (0, 0, 0, missing)
    exact = functional.pad(terms.double() * weights.double(), padding)
    steps = torch.unflatten(exact, 1, (-1, LANES))  # [16, Hi / 4, 4, columns]
    lanes = torch.zeros_like(steps[:, 0], dtype=terms.dtype)
    for step in steps.unbind(1):
        lanes = _rounded_once(step + lanes.double())
    lane0, lane1, lane2, lane3 = lanes.unbind(1)
    return (lane0 + lane2) + (lane1 + lane3)


def _rounded_once(x: Tensor) -> Tensor:
    """float64 to the nearest bf16, ties to even.

    torch converts by way of float32 and so rounds twice. Here the float32 between is rounded to
    odd (towards zero, the last bit set where anything is lost), which decides every tie rightly.
    """
    between = x.float()
    bits = between.view(torch.int32)
    away = between.double().abs() > x.abs()
    odd = torch.where(between.double() == x, bits, (bits - away.to(torch.int32)) | 1)
    return odd.view(torch.float32).to(torch.bfloat16)


def _selectable(scores: Tensor) -> Tensor:
    """NaN is never selected: it counts as -inf."""
    return scores.masked_fill(scores.isnan(), float("-inf"))


def _best(scores: Tensor, k: int) -> Tensor:
    """Columns of the k highest scores above -inf: -> [T, k] int32, ascending, -1 filled.

    A stable descending sort puts the lower column first among equal scores.
    """
    width = scores.shape[1]
    order = scores.sort(dim=-1, descending=True, stable=True)
    values, columns = order.values[:, :k], order.indices[:, :k]
    columns = columns.masked_fill(values == float("-inf"), width).sort(-1).values
    columns = columns.masked_fill(columns == width, -1).to(torch.int32)
    return functional.pad(columns, (0, k - columns.shape[1]), value=-1)
