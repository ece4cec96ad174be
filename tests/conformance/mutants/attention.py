"""Backends with one mistake each in the attention family: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.backend import Numerics, Selection, WindowSpan
from deepinfer.formats import dequantise
from deepinfer_reference.backend import ReferenceBackend


class KeysReadInterleaved(ReferenceBackend):
    """Index keys are scored with their scales behind each entry; they are stored planar."""

    def index_scores(self, *arguments: Any) -> Tensor:
        queries, weights, scale, keys, *rest = arguments
        form = replace(keys.format, layout="interleaved")
        return super().index_scores(queries, weights, scale, replace(keys, format=form), *rest)


class ReluMissing(ReferenceBackend):
    """Index scores sum dot products of either sign."""

    def index_scores(self, *arguments: Any) -> Tensor:
        given = arguments
        queries, weights, scale, keys, visible, width, batch, numerics = given
        heads = dequantise(*queries.quantised, queries.scheme, torch.float64)
        entries = torch.arange(width).expand(len(heads), -1)
        sequence = batch.sequence[:, None].expand_as(entries)
        own = self.load(keys, sequence, entries, batch, torch.float64)
        dots = torch.einsum("thi,tci->thc", heads, own)
        factor = scale if numerics is Numerics.REF else 1.0
        scores = (dots * (weights.double() * factor)[..., None]).sum(1).to(weights.dtype)
        hidden = (entries >= visible[:, None]) | (sequence < 0)
        return scores.masked_fill(hidden, float("-inf"))


class _OtherVisible(ReferenceBackend):
    more = 0

    def index_scores(self, *arguments: Any) -> Tensor:
        queries, weights, scale, keys, visible, *rest = arguments
        return super().index_scores(queries, weights, scale, keys, visible + self.more, *rest)


class CausalOneLate(_OtherVisible):
    """A row scores the entry that its own token has not completed yet."""

    more = 1


class CausalOneEarly(_OtherVisible):
    """A row does not score the entry that its own token completes."""

    more = -1


class ScaleDefaultedToOne(_OtherVisible):
    """The factor of the index scores is 1 in REF."""

    def index_scores(self, *arguments: Any) -> Tensor:
        queries, weights, _, *rest = arguments
        return super().index_scores(queries, weights, 1.0, *rest)


class TermsNotRounded(ReferenceBackend):
    """REF keeps dot products and terms of the index score in float32 and rounds the sum alone."""

    def index_scores(self, *arguments: Any) -> Tensor:
        queries, weights, *rest = arguments
        scores = super().index_scores(queries, weights.float(), *rest)
        return scores.to(weights.dtype)


class LastBlockDropped(ReferenceBackend):
    """The block of the last visible entry is a candidate only by its score."""

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        return super().best_blocks(scores, torch.full_like(visible, 1 << 20), size, k)


class TopHigherOfEqual(ReferenceBackend):
    """Of equal scores the higher entry is kept."""

    def top(
        self, scores: Tensor, visible: Tensor, k: int, candidates: Tensor | None, size: int
    ) -> Tensor:
        width = scores.shape[1]
        if candidates is not None or not width:
            return super().top(scores, visible, k, candidates, size)
        hidden = torch.arange(width) >= visible[:, None]
        turned = scores.masked_fill(hidden, float("-inf")).flip(1)
        found = super().top(turned, torch.full_like(visible, width), k, None, size)
        columns = torch.where(found < 0, width, width - 1 - found).sort(1).values
        return columns.masked_fill(columns == width, -1).to(torch.int32)


class BlocksHigherOfEqual(ReferenceBackend):
    """Of equal candidate blocks the higher one is kept."""

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        slope = torch.arange(scores.shape[1], dtype=torch.float64) // size * 1e-12
        return super().best_blocks(scores.double() + slope, visible, size, k)


class TopKFewer(ReferenceBackend):
    """One selected entry fewer."""

    def top(self, scores: Tensor, visible: Tensor, k: int, *rest: Any) -> Tensor:
        kept = super().top(scores, visible, k - 1, *rest)
        return functional.pad(kept, (0, 1), value=-1)


class CandidatesIgnored(ReferenceBackend):
    """Entries are chosen among all visible ones, candidates or not."""

    def top(self, scores: Tensor, visible: Tensor, k: int, _: Any, size: int) -> Tensor:
        return super().top(scores, visible, k, None, size)


class NanSelected(ReferenceBackend):
    """A score that is NaN counts as infinity."""

    def top(self, scores: Tensor, *rest: Any) -> Tensor:
        return super().top(scores.nan_to_num(nan=float("inf"), neginf=float("-inf")), *rest)


class SinkIgnored(ReferenceBackend):
    """The sink is left out of the softmax's denominator."""

    def attend(self, *arguments: Any) -> Tensor:
        *before, sink, scale, batch = arguments
        return super().attend(*before, torch.full_like(sink, float("-inf")), scale, batch)


class SinkTwiceScaled(ReferenceBackend):
    """The sink is multiplied by the scale, as logits are."""

    def attend(self, *arguments: Any) -> Tensor:
        *before, sink, scale, batch = arguments
        return super().attend(*before, sink * scale, scale, batch)


class _OtherWindow(ReferenceBackend):
    more = 0

    def attend(self, *arguments: Any) -> Tensor:
        queries, window, span, *rest = arguments
        first = torch.minimum((span.first - self.more).clamp(min=0), span.last.clamp(min=0))
        wider = WindowSpan(first, span.last, span.width + self.more)
        return super().attend(queries, window, wider, *rest)


class WindowShort(_OtherWindow):
    """The window is one position shorter."""

    more = -1


class WindowLong(_OtherWindow):
    """The window is one position longer."""

    more = 1


class MinusOneAttended(ReferenceBackend):
    """A selected entry -1 wraps to the last entry of the sequence."""

    def attend(self, *arguments: Any) -> Tensor:
        queries, window, span, main, chosen, *rest = arguments
        if chosen is not None:
            batch = rest[-1]
            lengths = batch.context_lengths[batch.sequence.clamp(min=0)]
            last = (lengths * main.entries // BLOCK_TOKENS - 1).int()[:, None]
            wrapped = torch.where(chosen.indices < 0, last, chosen.indices)
            chosen = Selection(wrapped, chosen.candidates)
        return super().attend(queries, window, span, main, chosen, *rest)


BLOCK_TOKENS = 16  # tokens of a context block in the small cases


class NanSpreads(ReferenceBackend):
    """A tile in which one row is NaN is NaN as a whole."""

    def attend(self, *arguments: Any) -> Tensor:
        out = super().attend(*arguments)
        return out + 0 * out.sum()


class BatchDependentSum(ReferenceBackend):
    """A batch of several rows is summed in another order than a row alone."""

    def attend(self, *arguments: Any) -> Tensor:
        queries, *rest = arguments
        if len(queries) == 1:
            return super().attend(queries, *rest)
        return super().attend(queries.double(), *rest).to(queries.dtype)


class RunToRun(ReferenceBackend):
    """Every second call is summed in another order."""

    calls = 0

    def attend(self, *arguments: Any) -> Tensor:
        queries, *rest = arguments
        self.calls += 1
        if self.calls % 2:
            return super().attend(queries, *rest)
        return super().attend(queries.double(), *rest).to(queries.dtype)


class OutputNotRotatedBack(ReferenceBackend):
    """The attention output keeps its rotation."""

    def rope(self, x: Tensor, positions: Tensor, frequencies: Tensor, *rest: Any) -> Tensor:
        inverse, numerics = rest
        return x if inverse else super().rope(x, positions, frequencies, inverse, numerics)


class QueriesNotRotated(ReferenceBackend):
    """Index queries are scored without their rotation."""

    def select(self, *arguments: Any) -> Selection:
        latent, a, weights, *rest = arguments
        still = replace(weights, frequencies=torch.zeros_like(weights.frequencies))
        return super().select(latent, a, still, *rest)


class OtherSequence(ReferenceBackend):
    """Main entries are read from the first sequence of the batch."""

    def attend(self, *arguments: Any) -> Tensor:
        *before, batch = arguments
        context = batch.context
        blocks = context.blocks[:1].expand_as(context.blocks)
        return super().attend(*before, replace(batch, context=replace(context, blocks=blocks)))
