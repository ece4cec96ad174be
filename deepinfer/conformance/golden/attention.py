"""Attention vectors: whole attention layers, each operator with stored inputs.

Intermediate results of a step are compared and then replaced by the stored ones, so that a
difference is found where it arises and nowhere else.

Three layers of one ratio are chained in the data: a Full layer (which is the candidate source), a
Reindex layer and a Reuse layer. Settings are those of the data's description.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    AttentionWeights,
    CompressorState,
    CompressorWeights,
    IndexerWeights,
    LinearSource,
    Numerics,
    OutputWeights,
    PackedLinear,
    Selection,
    WindowSpan,
)
from deepinfer.backend.batch import WINDOW
from deepinfer.backend.memory_source import MemorySource
from deepinfer.backend.resolution import Operators
from deepinfer.config import YarnConfig
from deepinfer.conformance.golden.comparison import attempt, close, compared, equal
from deepinfer.conformance.golden.data import Tensors
from deepinfer.conformance.golden.metrics import bf16_steps, row_steps
from deepinfer.conformance.golden.report import Item, Measure
from deepinfer.conformance.golden.scratch import dequantised, region, single_sequence
from deepinfer.conformance.golden.selections import (
    block_scores,
    entry_mask,
    kept_blocks,
    same_sets,
)
from deepinfer.formats import INDEX, MAIN, Scheme
from deepinfer.formats import WINDOW as WINDOW_FORMAT
from deepinfer.formats.dtypes import COMPUTE_DTYPES
from deepinfer.model import inverse_frequencies

_LENGTH, _HEADS, _HEAD_DIM, _WINDOW = 61, 2, 64, 8
_INDEX_HEADS, _INDEX_DIM, _TOP_K = 4, 32, 8
_BLOCK, _BLOCKS, _EPS = 4, 4, 1e-20
_NUMERICS = Numerics.REF


def check_attention(operators: Operators, vectors: Tensors, compute: str) -> Iterator[Item]:
    """Both ratios, three layers each."""
    for ratio in (1, 2):
        chain = _Chain(operators, vectors, compute, ratio)
        for role in ("full", "reindex", "reuse"):
            name = f"ops/attn/r{ratio}.{role}"
            yield from attempt(name, compute, functools.partial(chain.layer, role))


class _Chain:
    def __init__(self, operators: Operators, vectors: Tensors, compute: str, ratio: int) -> None:
        self.ops, self.vectors, self.compute, self.ratio = operators, vectors, compute, ratio
        self.dtype = COMPUTE_DTYPES[compute]
        self.batch = single_sequence(operators, _LENGTH)
        entries = _LENGTH // ratio + 1
        self.main = region(operators, MAIN, _HEAD_DIM, entries)
        self.index = region(operators, INDEX, _INDEX_DIM, entries)
        self.window = region(operators, WINDOW_FORMAT, _HEAD_DIM, _LENGTH, WINDOW)
        yarn = YarnConfig(16, 32, 1, 128)
        self.frequencies = inverse_frequencies(160000.0, 16, yarn).to(operators.device)
        self.selection: Selection | None = None

    def layer(self, role: str) -> Iterator[Item]:
        self.role = role
        a = Activation(self.get("in"))
        projection = self.ops.project(a, self._projections(), self.batch.positions, _NUMERICS)
        yield self._close("query", projection.queries)
        self.ops.store(projection.window, self.window, self.batch.positions, self.batch)
        yield self._equal("window_kv", self._load(self.window, _LENGTH))
        self._put(self.window, "window_kv")
        if role == "full":
            yield from self._update_context(a)
        if role != "reuse":
            yield from self._select(projection.latent, a)
        yield from self._attend()

    def get(self, name: str) -> Tensor:
        return self.vectors.get(self._key(name))

    def _key(self, name: str) -> str:
        return f"attn.r{self.ratio}.{self.role}.{self.compute}.{name}"

    def _label(self, name: str) -> str:
        return f"ops/attn/r{self.ratio}.{self.role}.{name}"

    def _close(self, name: str, got: Tensor) -> Item:
        return close(self._label(name), self.compute, got, self.get(name))

    def _equal(self, name: str, got: Tensor) -> Item:
        return equal(self._label(name), self.compute, got, self.get(name))

    def _linear(self, name: str) -> PackedLinear:
        source = LinearSource(MemorySource(self.get(f"param.{name}.weight").cpu()))
        return self.ops.pack_linear(source)

    def _norm(self, name: str) -> Tensor:
        return self.get(f"param.{name}.weight")

    def _rows(self, count: int) -> tuple[Any, Tensor]:
        batch = single_sequence(self.ops, count)
        return batch, batch.positions

    def _load(self, place: Any, count: int) -> Tensor:
        sequence = torch.zeros(count, dtype=torch.int64, device=self.ops.device)
        entries = torch.arange(count, device=self.ops.device)
        return self.ops.load(place, sequence, entries, self.batch, self.dtype)

    def _put(self, place: Any, name: str) -> None:
        values = self.get(name)
        batch, entries = self._rows(len(values))
        self.ops.store(values, place, entries, batch)

    def _projections(self) -> AttentionWeights:
        return AttentionWeights(
            self._linear("wq_a"),
            self._norm("q_norm"),
            self._linear("wq_b"),
            self._linear("wkv"),
            self._norm("kv_norm"),
            self.frequencies,
            _HEADS,
            _HEAD_DIM,
            _EPS,
        )

    def _update_context(self, a: Activation) -> Iterator[Item]:
        weights = CompressorWeights(
            wkv=self._linear("compressor.wkv"),
            wgate=self._linear("compressor.wgate") if self.ratio > 1 else None,
            norm=self._norm("compressor.norm"),
            wk=self._linear("indexer.wk"),
            k_norm=self._norm("indexer.k_norm"),
            frequencies=self.frequencies,
            ratio=self.ratio,
            eps=_EPS,
        )
        state = CompressorState(torch.zeros((2, self.ratio, 2, _HEAD_DIM), device=self.ops.device))
        latents: list[Tensor] = []
        entries: list[Tensor] = []

        def tap(operator: str, arguments: tuple[Any, ...], result: Any) -> None:
            if operator == "rms_norm":
                latents.append(result)
            elif operator == "compress":
                entries.append(result.entries)

        self.ops.tapped(tap).update_context(
            a,
            weights,
            state if self.ratio > 1 else None,
            self.main,
            self.index,
            self.batch,
            _NUMERICS,
        )
        if latents and entries:
            yield self._close("compressor_latent", latents[0][entries[0] >= 0])
        count = _LENGTH // self.ratio
        yield self._equal("compressed_kv", self._load(self.main, count))
        yield self._equal("index_keys", self._load(self.index, count))
        self._put(self.main, "compressed_kv")
        self._put(self.index, "index_keys")

    def _select(self, latent: Activation, a: Activation) -> Iterator[Item]:
        source = self.role == "full"
        weights = IndexerWeights(
            wq_b=self._linear("indexer.wq_b"),
            weights_proj=self._linear("indexer.weights_proj"),
            frequencies=self.frequencies,
            num_heads=_INDEX_HEADS,
            head_dim=_INDEX_DIM,
            top_k=_TOP_K,
            ratio=self.ratio,
            candidate_block=_BLOCK,
            candidate_blocks=_BLOCKS if source else 0,
        )
        seen: dict[str, Any] = {}

        def tap(operator: str, arguments: tuple[Any, ...], result: Any) -> None:
            if operator == "index_scores":
                seen["scores"], seen["weights"] = result, arguments[1] * arguments[2]
            elif operator == "quantise" and result.scheme is Scheme.MXFP4:
                seen["queries"] = dequantised(result)

        candidates = None if self.selection is None else self.selection.candidates
        selection = self.ops.tapped(tap).select(
            latent, a, weights, self.index, candidates, self.batch, _NUMERICS
        )
        if "scores" in seen:
            yield self._equal("index_q", seen["queries"])
            yield self._close("index_w", seen["weights"])
            yield self._close("index_scores", seen["scores"][:, : _LENGTH // self.ratio])
        scores = self.vectors.peek(self._key("index_scores"))
        if candidates is not None:
            allowed = entry_mask(candidates, _BLOCK, scores.shape[1])
            scores = scores.masked_fill(~allowed, float("-inf"))
        want = self.get("topk_indices")
        yield self._same_sets("topk_indices", selection.indices, want, scores)
        if source:
            candidates = kept_blocks(self.get("candidates"), _BLOCK, _BLOCKS)
            name = "candidates"
            if selection.candidates is None:
                yield Item.broken(self._label(name), self.compute, "select returned none")
            else:
                best = block_scores(scores, _BLOCK)
                yield self._same_sets(name, selection.candidates, candidates, best)
        self.selection = Selection(want.to(torch.int32), candidates)

    def _same_sets(self, name: str, got: Tensor, want: Tensor, scores: Tensor) -> Item:
        return same_sets(self._label(name), self.compute, got, want, scores)

    def _attend(self) -> Iterator[Item]:
        positions = self.batch.positions
        span = WindowSpan((positions - _WINDOW + 1).clamp(min=0), positions, _WINDOW)
        weights = OutputWeights(self._linear("wo_a"), self._linear("wo_b"), self.frequencies, 2)
        attended: list[Tensor] = []

        def tap(operator: str, arguments: tuple[Any, ...], result: Any) -> Any:
            if operator != "attend":
                return None
            attended.append(result)
            return self.get("attended").to(result.dtype)

        out = self.ops.tapped(tap).attend_output(
            self.get("query"),
            self.window,
            span,
            self.main,
            self.selection,
            self.get("param.attn_sink"),
            float(_HEAD_DIM**-0.5),
            self.batch,
            weights,
            _NUMERICS,
        )
        for result in attended:
            yield self._close("attended", result)
        if self.compute == "fp32":
            yield self._close("out", out)
        else:
            measure = _steps if attended else _steps_of_the_row
            yield compared(self._label("out"), self.compute, out, self.get("out"), measure)


def _steps(got: Tensor, want: Tensor) -> list[Measure]:
    return [Measure("bf16 steps", bf16_steps(got, want), "<=", 2)]


def _steps_of_the_row(got: Tensor, want: Tensor) -> list[Measure]:
    """For an output whose attention was not judged first: one step of that may be many here."""
    return [Measure("bf16 steps of the row", row_steps(got, want), "<=", 2)]
