"""The null backend: results of the right shapes and no work. It measures the engine alone.

Tokens are a function of the position, everything else is zeros. Results share their memory and are
handed out again, so a step of a size that was seen before allocates nothing; against the contract,
a result is not a new tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    CONTRACT_VERSION,
    Activation,
    Advanced,
    AttentionWeights,
    Availability,
    Backend,
    BackendSpec,
    Batch,
    Compressed,
    CompressorState,
    CompressorWeights,
    EngramWeights,
    Entered,
    ExpertSource,
    Group,
    IndexerWeights,
    LinearSource,
    Mix,
    MixSite,
    MlpWeights,
    Mode,
    NgramHash,
    Numerics,
    OutputWeights,
    PackedExperts,
    PackedLinear,
    PackedTable,
    Packing,
    Pool,
    Projection,
    Region,
    Routed,
    RouterWeights,
    Routing,
    SamplingParameters,
    Selection,
    Source,
    SubLayer,
    TopLogprobs,
    Weights,
    WindowSpan,
    accumulation_dtype,
    hookimpl,
)
from deepinfer.formats import Scheme

MOST_VIEWS = 4096


class NullLinear(PackedTable):
    """The shape of a matrix, and nothing of its values."""

    def __init__(self, source: LinearSource) -> None:
        self.shape = source.shape
        self.kind = source.kind


class NullExperts(PackedExperts):
    """The shapes of experts."""

    def __init__(self, sources: Sequence[ExpertSource]) -> None:
        self.num_slots = len(sources)
        self.intermediate, self.hidden = sources[0].w1.shape if sources else (0, 0)
        self.kind = sources[0].w1.kind if sources else "bf16"

    def export_slot(self, slot: int) -> Tensor:
        """No bytes."""
        return torch.empty(0, dtype=torch.uint8)

    def import_slot(self, slot: int, data: Tensor) -> None:
        """Nothing to overwrite."""


class NullBackend(Backend):
    """Every operator that the model calls, doing nothing."""

    def __init__(self, device: torch.device | str) -> None:
        super().__init__(device)
        self._zeros: dict[torch.dtype, Tensor] = {}
        self._views: dict[tuple[Any, ...], Tensor] = {}

    def _like(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """Zeros that every call shares: a view of one piece of memory per dtype.

        The piece grows to the largest request, so memory does not grow with the number of shapes.
        """
        view = self._views.get((dtype, shape))
        if view is not None:
            return view
        count = math.prod(shape)
        zeros = self._zeros.get(dtype)
        if zeros is None or len(zeros) < count:
            zeros = self._zeros[dtype] = torch.zeros(count, dtype=dtype, device=self.device)
            self._views.clear()  # those of the smaller piece would keep it alive
        if len(self._views) >= MOST_VIEWS:
            self._views.clear()
        view = self._views[dtype, shape] = zeros[:count].view(shape)
        return view

    def packing(self, operator: str, weights: Weights) -> Packing:
        """Nothing."""
        return Packing()

    def pack_vector(self, source: Source) -> Tensor:
        """Zeros of its shape; nothing is read."""
        dtype = torch.bfloat16 if source.dtype == "BF16" else torch.float32
        return self._like(dtype, *source.shape)

    def pack_linear(self, source: LinearSource) -> PackedLinear:
        """Its shape; nothing is read."""
        return NullLinear(source)

    def pack_table(self, source: LinearSource) -> PackedTable:
        """Its shape; nothing is read."""
        return NullLinear(source)

    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        """Their shapes; nothing is read."""
        return NullExperts(sources)

    def embed(self, table: PackedTable, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """[T, H]."""
        return self._like(dtype, len(ids), table.shape[1])

    def quantise(self, x: Tensor, scheme: Scheme | None) -> Activation:
        """The values, unquantised."""
        return Activation(x)

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        """[T, M]."""
        return self._like(out_dtype, len(a.values), w.shape[0])

    def grouped_linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        """[T, G, M]."""
        rows, groups = a.values.shape[:2]
        return self._like(out_dtype, rows, groups, w.shape[0] // groups)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x."""
        return x

    def rope(
        self,
        x: Tensor,
        positions: Tensor,
        frequencies: Tensor,
        inverse: bool,
        numerics: Numerics,
    ) -> Tensor:
        """x."""
        return x

    def norm_quantise(
        self, x: Tensor, weight: Tensor, eps: float, scheme: Scheme | None
    ) -> Activation:
        """x."""
        return Activation(x)

    def project(
        self, a: Activation, weights: AttentionWeights, positions: Tensor, numerics: Numerics
    ) -> Projection:
        """Queries, latent and window of each row."""
        rows = len(a.values)
        return Projection(
            self._like(a.dtype, rows, weights.num_heads, weights.head_dim),
            Activation(self._like(a.dtype, rows, weights.wq_a.shape[0])),
            self._like(a.dtype, rows, weights.head_dim),
        )

    def logits(self, x: Tensor, norm: Tensor, eps: float, head: PackedLinear) -> Tensor:
        """[M, V]."""
        return self._like(accumulation_dtype(x.dtype), len(x), head.shape[0])

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        """Pre, post and comb of each row."""
        rows, count = streams.shape[:2]
        wide = accumulation_dtype(streams.dtype)
        return Mix(
            self._like(wide, rows, count),
            self._like(wide, rows, count),
            self._like(wide, rows, count, count),
        )

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        """[T, H]."""
        return self._like(streams.dtype, streams.shape[0], streams.shape[2])

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        """The streams."""
        return streams

    def enter(
        self, streams: Tensor, pre: Tensor, sub_layer: SubLayer, scheme: Scheme | None
    ) -> Entered:
        """A mix, and the input of a sub-layer."""
        return Entered(self.mix(streams, sub_layer.site), Activation(self.collapse(streams, pre)))

    def advance(
        self,
        out: Tensor,
        streams: Tensor,
        mix: Mix,
        next_sub_layer: SubLayer,
        scheme: Scheme | None,
    ) -> Advanced:
        """The streams, a mix, and the input of the next sub-layer."""
        entered = self.enter(streams, mix.pre, next_sub_layer, scheme)
        return Advanced(streams, entered.mix, entered.activation)

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        """[T, C]."""
        return self._like(torch.int64, len(history), len(hash.primes))

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        """[T, C*W]."""
        return Activation(self._like(dtype, len(rows), rows.shape[1] * table.shape[1]))

    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
        """The streams."""
        return streams

    def engram(
        self, streams: Tensor, history: Tensor, weights: EngramWeights, blocked: Tensor
    ) -> Tensor:
        """The streams."""
        return streams

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        """Nothing."""

    def load(
        self, region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
    ) -> Tensor:
        """[M, D]."""
        return self._like(dtype, len(entries), region.width)

    def compress(
        self,
        values: Tensor,
        gates: Tensor | None,
        state: CompressorState | None,
        batch: Batch,
        ratio: int,
        dtype: torch.dtype,
    ) -> Compressed:
        """Latents, and entry 0 for every row."""
        rows, width = values.shape
        return Compressed(self._like(dtype, rows, width), self._like(torch.int64, rows))

    def copy(self, pool: Pool, pairs: Tensor) -> None:
        """Nothing."""

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        """[M, image_bytes]."""
        return self._like(torch.uint8, len(blocks), pool.image_bytes)

    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        """Nothing."""

    def norm_rope_store(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        positions: Tensor,
        frequencies: Tensor,
        region: Region,
        entries: Tensor,
        batch: Batch,
        numerics: Numerics,
    ) -> None:
        """Nothing."""

    def update_context(
        self,
        a: Activation,
        weights: CompressorWeights,
        state: CompressorState | None,
        main: Region,
        index: Region,
        batch: Batch,
        numerics: Numerics,
    ) -> None:
        """Nothing."""

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
        """[T, width]."""
        return self._like(weights.dtype, len(weights), width)

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        """[T, k]."""
        return self._like(torch.int32, len(visible), k)

    def top(
        self, scores: Tensor, visible: Tensor, k: int, candidates: Tensor | None, size: int
    ) -> Tensor:
        """[T, k]."""
        return self._like(torch.int32, len(visible), k)

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
        """[T, A, D]."""
        return queries

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
        """The first entry, many times."""
        rows, blocks = batch.num_rows, weights.candidate_blocks
        if blocks:
            candidates = self._like(torch.int32, rows, blocks)
        return Selection(self._like(torch.int32, rows, weights.top_k), candidates)

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
        """[T, H]."""
        return self._like(queries.dtype, len(queries), weights.wo_b.shape[0])

    def route(
        self,
        logits: Tensor,
        bias: Tensor,
        image_bias: Tensor,
        image_mask: Tensor,
        k: int,
        scale: float,
    ) -> Routing:
        """Expert 0, k times."""
        rows = len(logits)
        return Routing(self._like(torch.int32, rows, k), self._like(logits.dtype, rows, k))

    def dispatch(self, a: Activation, routing: Routing, group: Group) -> Routed:
        """The rows."""
        return Routed(a, routing, group)

    def swiglu(
        self, gate: Tensor, up: Tensor, limit: float, weights: Tensor | None, numerics: Numerics
    ) -> Activation:
        """The gate."""
        return Activation(gate)

    def expert_mlp(
        self, routed: Routed, experts: PackedExperts, limit: float, numerics: Numerics
    ) -> Routed:
        """[T, k, H]."""
        rows, k = routed.routing.ids.shape
        routed.outputs = self._like(routed.activation.dtype, rows, k, experts.hidden)
        return routed

    def combine(self, routed: Routed, shared: Tensor, numerics: Numerics) -> Tensor:
        """[T, H]."""
        return shared

    def shared_mlp(
        self, a: Activation, weights: MlpWeights, limit: float, numerics: Numerics
    ) -> Tensor:
        """[T, H]."""
        return self._like(a.dtype, len(a.values), weights.w2.shape[0])

    def mixture(
        self,
        a: Activation,
        router: RouterWeights,
        experts: PackedExperts,
        shared: MlpWeights,
        image_mask: Tensor,
        limit: float,
        group: Group,
        numerics: Numerics,
    ) -> Tensor:
        """[T, H]."""
        return a.values

    def mask(self, logits: Tensor, bits: Tensor) -> Tensor:
        """The logits."""
        return logits

    def process(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """The logits."""
        return logits

    def sample(self, logprobs: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
        """The position, modulo the vocabulary."""
        return positions % logprobs.shape[1]

    def top_logprobs(self, logprobs: Tensor, k: int) -> TopLogprobs:
        """The first k tokens."""
        rows = len(logprobs)
        ids = torch.arange(k, device=logprobs.device).expand(rows, k)
        return TopLogprobs(ids, self._like(logprobs.dtype, rows, k))


@hookimpl
def deepinfer_backend() -> BackendSpec:
    """One mode, which computes nothing."""
    return BackendSpec(
        name="null",
        contract_version=CONTRACT_VERSION,
        distribution="deepinfer-core",
        modes=(Mode("hardware", "computes nothing: the engine alone", "cpu", timing=False),),
        computes=False,
    )


@hookimpl
def deepinfer_probe(mode: str | None) -> Availability:
    """Usable, and never chosen by itself."""
    return Availability(True, -1, ("computes nothing; measures the engine alone",))


@hookimpl
def deepinfer_create(mode: str, device: str) -> Backend:
    """The null backend on any torch device."""
    return NullBackend(device)
