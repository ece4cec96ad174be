"""`Backbone`: the layers of the text model as a sequence of operator calls.

Rows of prompt chunks, of decoding and of drafts are treated alike. Source: model specification,
Appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    Batch,
    Contract,
    Group,
    Mix,
    Numerics,
    Selection,
    WindowSpan,
)
from deepinfer.cache import CachePools
from deepinfer.config import TextConfig
from deepinfer.model.weights import BackboneWeights, LayerWeights


@dataclass
class Residual:
    """The state between two sub-layers.

    streams [T, S, H]. pre [T, S]: the pre mix that the next sub-layer reads the streams with. out
    [T, H], mix: output and mix of the last sub-layer, not yet written into the streams; None before
    the first sub-layer.
    """

    streams: Tensor
    pre: Tensor
    out: Tensor | None = None
    mix: Mix | None = None


@dataclass
class Selections:
    """Results of earlier layers that later layers of the same forward use.

    selection, candidates: of the last layer that selected. span: the window of every row.
    """

    selection: Selection | None = None
    candidates: Tensor | None = None
    span: WindowSpan | None = None


class LayerTap(Protocol):
    """Functions that a backbone calls before and after each layer."""

    def before(
        self, layer: LayerWeights, residual: Residual, selections: Selections, batch: Batch
    ) -> Residual | None:
        """Called before a layer; returns the residual that the layer shall take.

        It may be the one given. None leaves the layer out: the next one follows, without `after`.
        selections may be changed in place, for the layer to use.
        """

    def after(self, layer: LayerWeights, residual: Residual, batch: Batch) -> None:
        """Called after a layer: its entries are in the pools, its last output is pending."""


class Backbone:
    """The layers between token ids and logits.

    numerics: the numeric mode. dtype: compute precision, which is bf16, float32 or float64. tap:
    called before and after each layer.
    """

    def __init__(
        self,
        text: TextConfig,
        weights: BackboneWeights,
        operators: Contract,
        numerics: Numerics,
        dtype: torch.dtype,
        group: Group | None = None,
    ) -> None:
        self.text = text
        self.weights = weights
        self.operators = operators
        self.numerics = numerics
        self.dtype = dtype
        self.group = group or Group()
        self.scale = float(text.head_dim**-0.5)
        self.tap: LayerTap | None = None

    def run(self, batch: Batch, pools: CachePools) -> Residual:
        """Run all layers and write the entries of the batch to the pools; see `head` for logits."""
        residual = self.begin(batch)
        selections = Selections()
        for layer in self.weights.layers:
            if self.tap is not None:
                taken = self.tap.before(layer, residual, selections, batch)
                if taken is None:
                    continue
                residual = taken
            residual = self.layer(layer, residual, selections, batch, pools)
            if self.tap is not None:
                self.tap.after(layer, residual, batch)
        return residual

    def begin(self, batch: Batch) -> Residual:
        """The first state: the embeddings in every stream, and a pre mix that reads stream 0."""
        embedded = self.operators.embed(self.weights.embedding, batch.token_ids, self.dtype)
        streams = embedded.unsqueeze(1).repeat(1, self.text.hc_mult, 1)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        pre = torch.zeros(streams.shape[:2], dtype=wide, device=streams.device)
        pre[:, 0] = 1
        return Residual(streams, pre)

    def layer(
        self,
        weights: LayerWeights,
        residual: Residual,
        selections: Selections,
        batch: Batch,
        pools: CachePools,
    ) -> Residual:
        """Run a layer: Engram, attention, mixture of experts. The last output stays pending."""
        scheme = self.numerics.activation_scheme
        if weights.engram is not None:
            residual = self._engram(weights, residual, batch)
        if residual.out is None or residual.mix is None:
            streams = residual.streams
            mix, a = self.operators.enter(streams, residual.pre, weights.attention_site, scheme)
        else:
            streams, mix, a = self.operators.advance(
                residual.out, residual.streams, residual.mix, weights.attention_site, scheme
            )
        out = self._attention(weights, a, selections, batch, pools)
        streams, mix, b = self.operators.advance(out, streams, mix, weights.mixture_site, scheme)
        out = self.operators.mixture(
            b,
            weights.router,
            weights.experts,
            weights.shared,
            batch.image_mask,
            self.text.swiglu_limit,
            self.group,
            self.numerics,
        )
        return Residual(streams, mix.pre, out, mix)

    def settle(self, residual: Residual) -> Residual:
        """Write the pending output into the streams."""
        if residual.out is None or residual.mix is None:
            return residual
        streams = self.operators.expand(residual.out, residual.streams, residual.mix)
        return Residual(streams, residual.mix.pre)

    def head(self, residual: Residual, rows: Tensor | None) -> Tensor:
        """Logits [M, V] of rows [M] int64, or of all rows; float32, or float64 in float64."""
        chosen, mix = residual, residual.mix
        if rows is not None:
            chosen = Residual(
                residual.streams[rows],
                residual.pre[rows],
                residual.out[rows] if residual.out is not None else None,
                Mix(*(part[rows] for part in mix)) if mix is not None else None,
            )
        chosen = self.settle(chosen)
        collapsed = self.operators.collapse(chosen.streams, chosen.pre)
        return self.operators.logits(
            collapsed, self.weights.norm, self.text.rms_norm_eps, self.weights.head
        )

    def _engram(self, weights: LayerWeights, residual: Residual, batch: Batch) -> Residual:
        assert weights.engram is not None
        if batch.history is None:
            raise ValueError("this model has Engram layers; build the batch with its history")
        residual = self.settle(residual)
        streams = self.operators.engram(
            residual.streams, batch.history, weights.engram, batch.image_mask
        )
        return Residual(streams, residual.pre)

    def _attention(
        self,
        weights: LayerWeights,
        a: Activation,
        selections: Selections,
        batch: Batch,
        pools: CachePools,
    ) -> Tensor:
        plan, ops = weights.plan, self.operators
        projection = ops.project(a, weights.attention, batch.positions, self.numerics)
        if selections.span is None:
            selections.span = self.window_span(batch)
        window = pools.window_region(plan.index)
        ops.store(projection.window, window, batch.positions, batch)
        main = None
        if plan.kv_source is not None:
            main = pools.main(plan.kv_source)
            index = pools.index(plan.kv_source)
            if weights.compressor is not None:
                state = pools.compressor(plan.index)
                ops.update_context(a, weights.compressor, state, main, index, batch, self.numerics)
            if weights.indexer is not None:
                selections.selection = ops.select(
                    projection.latent,
                    a,
                    weights.indexer,
                    index,
                    selections.candidates if plan.uses_candidates else None,
                    batch,
                    self.numerics,
                )
                if plan.candidate_source:
                    selections.candidates = selections.selection.candidates
        return ops.attend_output(
            projection.queries,
            window,
            selections.span,
            main,
            selections.selection if main is not None else None,
            weights.sink,
            self.scale,
            batch,
            weights.output,
            self.numerics,
        )

    def window_span(self, batch: Batch) -> WindowSpan:
        """The window of each row: its last `sliding_window` positions, its own included."""
        first = (batch.positions - self.text.sliding_window + 1).clamp(min=0)
        return WindowSpan(first, batch.positions, self.text.sliding_window)
