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
from deepinfer.conformance.case import Failure
from deepinfer.formats import dequantise
from tests.conformance.mutants import dense
from tests.conformance.mutants.variant import Variant, interleaved, with_arguments, with_result


class KeysReadInterleaved(Variant, seen_at="index_scores", failure=Failure.NAN):
    """Index keys are scored with their scales behind each entry; they are stored planar."""

    index_scores = with_arguments("index_scores", keys=interleaved)


class ReluMissing(Variant, seen_at="index_scores select"):
    """Index scores sum dot products of either sign."""

    def index_scores(self, *arguments: Any) -> Tensor:
        queries, weights, scale, keys, visible, width, batch, numerics = arguments
        heads = dequantise(*queries.quantised, queries.scheme, torch.float64)
        entries = torch.arange(width).expand(len(heads), -1)
        sequence = batch.sequence[:, None].expand_as(entries)
        own = self.load(keys, sequence, entries, batch, torch.float64)
        dots = torch.einsum("thi,tci->thc", heads, own)
        factor = scale if numerics is Numerics.REF else 1.0
        scores = (dots * (weights.double() * factor)[..., None]).sum(1).to(weights.dtype)
        hidden = (entries >= visible[:, None]) | (sequence < 0)
        return scores.masked_fill(hidden, float("-inf"))


class CausalOneLate(Variant, seen_at="index_scores", failure=Failure.NAN):
    """A row scores the entry that its own token has not completed yet."""

    index_scores = with_arguments("index_scores", visible=lambda visible: visible + 1)


class CausalOneEarly(Variant, seen_at="index_scores", failure=Failure.NAN):
    """A row does not score the entry that its own token completes."""

    index_scores = with_arguments("index_scores", visible=lambda visible: visible - 1)


class ScaleDefaultedToOne(Variant, seen_at="index_scores"):
    """The factor of the index scores is 1 in REF."""

    index_scores = with_arguments("index_scores", scale=lambda scale: 1.0)


class TermsNotRounded(Variant, seen_at="index_scores"):
    """REF keeps dot products and terms of the index score in float32 and rounds the sum alone."""

    def index_scores(self, *arguments: Any) -> Tensor:
        queries, weights, *rest = arguments
        scores = super().index_scores(queries, weights.float(), *rest)
        return scores.to(weights.dtype)


class LastBlockDropped(Variant, seen_at="best_blocks select"):
    """The block of the last visible entry is a candidate only by its score."""

    best_blocks = with_arguments(
        "best_blocks", visible=lambda visible: torch.full_like(visible, 1 << 20)
    )


class TopHigherOfEqual(Variant, seen_at="top select"):
    """Of equal scores the higher entry is kept."""

    def top(self, *arguments: Any) -> Tensor:
        scores, visible, k, candidates, size = arguments
        width = scores.shape[1]
        if candidates is not None or not width:
            return super().top(scores, visible, k, candidates, size)
        hidden = torch.arange(width) >= visible[:, None]
        turned = scores.masked_fill(hidden, float("-inf")).flip(1)
        found = super().top(turned, torch.full_like(visible, width), k, None, size)
        columns = torch.where(found < 0, width, width - 1 - found).sort(1).values
        return columns.masked_fill(columns == width, -1).to(torch.int32)


class BlocksHigherOfEqual(Variant, seen_at="best_blocks"):
    """Of equal candidate blocks the higher one is kept."""

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        slope = torch.arange(scores.shape[1], dtype=torch.float64) // size * 1e-12
        return super().best_blocks(scores.double() + slope, visible, size, k)


class TopKFewer(Variant, seen_at="top select"):
    """One selected entry fewer."""

    def top(self, scores: Tensor, visible: Tensor, k: int, *rest: Any) -> Tensor:
        kept = super().top(scores, visible, k - 1, *rest)
        return functional.pad(kept, (0, 1), value=-1)


class CandidatesIgnored(Variant, seen_at="top select"):
    """Entries are chosen among all visible ones, candidates or not."""

    top = with_arguments("top", candidates=lambda candidates: None)


class NanSelected(Variant, seen_at="top"):
    """A score that is NaN counts as infinity."""

    top = with_arguments(
        "top", scores=lambda scores: scores.nan_to_num(nan=float("inf"), neginf=float("-inf"))
    )


class SinkIgnored(Variant, seen_at="attend attend_output model.vectors"):
    """The sink is left out of the softmax's denominator."""

    attend = with_arguments("attend", sink=lambda sink: torch.full_like(sink, float("-inf")))


class SinkTwiceScaled(Variant, seen_at="attend"):
    """The sink is multiplied by the scale, as logits are."""

    def attend(self, *arguments: Any) -> Tensor:
        *before, sink, scale, batch = arguments
        return super().attend(*before, sink * scale, scale, batch)


class _OtherWindow(Variant):
    more = 0

    def attend(self, *arguments: Any) -> Tensor:
        queries, window, span, *rest = arguments
        first = torch.minimum((span.first - self.more).clamp(min=0), span.last.clamp(min=0))
        wider = WindowSpan(first, span.last, span.width + self.more)
        return super().attend(queries, window, wider, *rest)


class WindowShort(_OtherWindow, seen_at="attend attend_output"):
    """The window is one position shorter."""

    more = -1


class WindowLong(_OtherWindow, seen_at="attend attend_output"):
    """The window is one position longer."""

    more = 1


class MinusOneAttended(Variant, seen_at="attend"):
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


class NanSpreads(Variant, seen_at="attend", failure=Failure.NAN):
    """A tile in which one row is NaN is NaN as a whole."""

    attend = with_result("attend", lambda out: out + 0 * out.sum())


class BatchDependentSum(Variant, seen_at="attend", failure=Failure.BATCH):
    """A batch of several rows is summed in another order than a row alone."""

    def attend(self, queries: Tensor, *rest: Any) -> Tensor:
        if len(queries) == 1:
            return super().attend(queries, *rest)
        return super().attend(queries.double(), *rest).to(queries.dtype)


class RunToRun(Variant, seen_at="attend", failure=Failure.REPEAT):
    """Every second call is summed in another order."""

    calls = 0

    def attend(self, queries: Tensor, *rest: Any) -> Tensor:
        self.calls += 1
        if self.calls % 2:
            return super().attend(queries, *rest)
        return super().attend(queries.double(), *rest).to(queries.dtype)


class OutputNotRotatedBack(dense.InverseSkipped, seen_at="attend_output"):
    """The attention output keeps its rotation."""


class QueriesNotRotated(Variant, seen_at="select"):
    """Index queries are scored without their rotation."""

    select = with_arguments(
        "select", weights=lambda own: replace(own, frequencies=torch.zeros_like(own.frequencies))
    )


class OtherSequence(Variant, seen_at="attend"):
    """Main entries are read from the first sequence of the batch."""

    def attend(self, *arguments: Any) -> Tensor:
        *before, batch = arguments
        context = batch.context
        blocks = context.blocks[:1].expand_as(context.blocks)
        return super().attend(*before, replace(batch, context=replace(context, blocks=blocks)))
