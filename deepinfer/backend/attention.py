"""Attention family: index scores, selection, and sparse attention over two quantised caches.

T rows, A heads, D head width, Hi index heads, I index width, r compression ratio. Source: model
specification, sections 4.5 to 4.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deepinfer.backend.batch import Batch, Region
from deepinfer.backend.dense import Dense
from deepinfer.backend.facts import stored_kind, unquantised_cache, width_of
from deepinfer.backend.operators import primitive, step
from deepinfer.backend.values import Activation, Numerics, PackedLinear, Selection
from deepinfer.formats import Scheme


@dataclass(frozen=True)
class IndexerWeights:
    """Packed weights of an index-source layer.

    wq_b [Hi*I, Q], weights_proj [Hi, H]; top_k entries kept; ratio of the layer.
    candidate_block entries per candidate block; candidate_blocks kept by the layer that produces
    candidates, 0 for the others.
    """

    wq_b: PackedLinear
    weights_proj: PackedLinear
    frequencies: Tensor
    num_heads: int
    head_dim: int
    top_k: int
    ratio: int
    candidate_block: int
    candidate_blocks: int

    @property
    def scale(self) -> float:
        """Factor of every score: (I * Hi) ** -0.5."""
        return float((self.head_dim * self.num_heads) ** -0.5)


@dataclass(frozen=True)
class OutputWeights:
    """Packed weights of the grouped output projection: wo_a [G*M, A*D/G], wo_b [H, G*M]."""

    wo_a: PackedLinear
    wo_b: PackedLinear
    frequencies: Tensor
    groups: int


@dataclass(frozen=True)
class WindowSpan:
    """Window positions that each row sees: first..last, both included, [T] int64.

    width is a host bound of last - first + 1: the sliding window, plus the block for drafts.
    """

    first: Tensor
    last: Tensor
    width: int


def _attended(call: Any) -> dict[str, object]:
    """Facts of `attend`; without a selection no cache of compressed entries is met."""
    selected = call.selection is not None
    return {
        "heads": call.queries.shape[1],
        "head_dim": call.queries.shape[2],
        "window": call.span.width,
        "selected": call.selection.indices.shape[1] if selected else 0,
        "dtype": call.queries.dtype,
        **(unquantised_cache(call.main) if selected else {}),
    }


def _candidate_block(weights: IndexerWeights, candidates: Tensor | None) -> int | None:
    """Entries per candidate block; None for a layer that neither makes nor gets candidates."""
    return weights.candidate_block if weights.candidate_blocks or candidates is not None else None


class Attention(Dense):
    """Operators that read the caches."""

    @primitive(
        rows="queries.values",
        length="batch.max_context",
        facts=lambda call: {
            **width_of(call.queries.values),
            "heads": call.queries.values.shape[1],
            "numerics": call.numerics,
            **unquantised_cache(call.keys),
        },
        inherited=("ratio",),
    )
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
        """Sum over heads of relu(query . key) * weight * scale: -> [T, width], weights' dtype.

        queries [T, Hi, I] quantised as MXFP4; weights [T, Hi]; visible [T] int64 entries seen by
        each row, of which the first `width` columns are scored. Invisible columns are -inf. REF
        rounds dot products, terms and the sum (summed fp32); INFER omits the scale, rounds the
        relu and accumulates fused in four lanes of heads (model specification, 4.5). Float64
        and float32 round nothing more than their own precision.
        """
        raise NotImplementedError

    @primitive(
        rows="scores",
        facts=lambda call: {"block": call.size, "blocks": call.k, "dtype": call.scores.dtype},
        inherited=("length",),
    )
    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        """The k best candidate blocks of each row: -> [T, k] int32, ascending, -1 filled.

        A block's score is its best visible score, capped at the largest finite bf16; the block of
        the last visible entry always stays. Equal scores: the lower block (4.6).
        """
        raise NotImplementedError

    @primitive(
        rows="scores",
        facts=lambda call: {
            "top_k": call.k,
            "candidates": call.candidates is not None,
            "dtype": call.scores.dtype,
        },
        inherited=("block", "length"),
    )
    def top(
        self, scores: Tensor, visible: Tensor, k: int, candidates: Tensor | None, size: int
    ) -> Tensor:
        """The k best visible entries of each row: -> [T, k] int32, ascending, -1 filled.

        With candidates [T, B], only entries of those blocks of `size`. Equal scores: the lower
        entry. Never selects a score of -inf or NaN.
        """
        raise NotImplementedError

    @primitive(
        rows="queries",
        length="batch.max_context",
        facts=_attended,
        inherited=("ratio",),
    )
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
        """Softmax attention of queries [T, A, D] over window positions and selected entries.

        Keys and values are the same dequantised entries; sink [A] adds to the denominator only;
        main and selection are None for window layers. fp32 inside, rounded once: -> [T, A, D]. A
        row without any key gives zeros (4.7).
        """
        raise NotImplementedError

    @step(
        rows="latent.values",
        length="batch.max_context",
        facts=lambda call: {
            "heads": call.weights.num_heads,
            "width": call.weights.head_dim,
            "top_k": call.weights.top_k,
            "candidates": call.candidates is not None,
            "block": _candidate_block(call.weights, call.candidates),
            "blocks": call.weights.candidate_blocks,
            "ratio": call.weights.ratio,
            "weight": stored_kind(call.weights.wq_b),
            "numerics": call.numerics,
            "dtype": call.a.dtype,
            **unquantised_cache(call.keys),
        },
    )
    def select(
        self,
        latent: Activation,
        a: Activation,
        weights: IndexerWeights,
        keys: Region,
        candidates: Tensor | None,
        batch: Batch,
        numerics: Numerics,
    ) -> Selection:
        """Score the visible entries and keep the best (4.5, 4.6).

        latent [T, Q] feeds the index queries, a [T, H] (its values) the head weights. Returns the
        candidates that later index layers must keep to.
        """
        dtype = a.dtype
        queries = self.linear(latent, weights.wq_b, dtype)
        queries = queries.view(queries.shape[0], weights.num_heads, weights.head_dim)
        queries = self.rope(queries, batch.positions, weights.frequencies, False, numerics)
        head_weights = self.linear(Activation(a.values), weights.weights_proj, dtype)
        visible = (batch.positions + 1) // weights.ratio
        scores = self.index_scores(
            self.quantise(queries, Scheme.MXFP4),
            head_weights,
            weights.scale,
            keys,
            visible,
            batch.max_context // weights.ratio,
            batch,
            numerics,
        )
        size = weights.candidate_block
        indices = self.top(scores, visible, weights.top_k, candidates, size)
        if weights.candidate_blocks:
            candidates = self.best_blocks(scores, visible, size, weights.candidate_blocks)
        return Selection(indices, candidates)

    @step(
        rows="queries",
        length="batch.max_context",
        facts=lambda call: {
            **_attended(call),
            "groups": call.weights.groups,
            "rank": call.weights.wo_a.shape[0] // call.weights.groups,
            "hidden": call.weights.wo_b.shape[0],
            "weight": stored_kind(call.weights.wo_b),
            "numerics": call.numerics,
        },
        inherited=("ratio",),
    )
    def attend_output(
        self,
        queries: Tensor,
        window: Region,
        span: WindowSpan,
        main: Region | None,
        selection: Selection | None,
        sink: Tensor,
        scale: float,
        batch: Batch,
        weights: OutputWeights,
        numerics: Numerics,
    ) -> Tensor:
        """`attend`, inverse rotation, grouped and full output projection: -> [T, H] (4.8).

        The attention result is rounded after the softmax and again after the rotation.
        """
        dtype = queries.dtype
        scheme = numerics.activation_scheme
        heads = self.attend(queries, window, span, main, selection, sink, scale, batch)
        heads = self.rope(heads, batch.positions, weights.frequencies, True, numerics)
        width = heads.shape[1] * heads.shape[2] // weights.groups
        grouped = heads.reshape(heads.shape[0], weights.groups, width)
        middle = self.grouped_linear(self.quantise(grouped, scheme), weights.wo_a, dtype)
        return self.linear(self.quantise(middle.flatten(1), scheme), weights.wo_b, dtype)
