"""`Shapes`: the primitives as functions of shapes and dtypes, and sources without a value.

Tensors are uninitialised ones of the host, so a caller keeps the number of rows small. (Torch's
"meta" device would do without their memory and takes seconds to import.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.backend.attention import WindowSpan
from deepinfer.backend.base import Contract
from deepinfer.backend.batch import Batch, Pool, Region
from deepinfer.backend.cache import CompressorState
from deepinfer.backend.engram import NgramHash
from deepinfer.backend.hyper import MixSite
from deepinfer.backend.sampling import SamplingParameters
from deepinfer.backend.values import (
    Activation,
    Compressed,
    ExpertSource,
    Group,
    LinearSource,
    Mix,
    Numerics,
    PackedExperts,
    PackedLinear,
    PackedTable,
    Routed,
    Routing,
    Selection,
    Source,
    TopLogprobs,
    accumulation_dtype,
)
from deepinfer.formats import Scheme
from deepinfer.formats.dtypes import PUBLISHED_DTYPES

HOST = torch.device("cpu")


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor whose values mean nothing."""
    return torch.empty(tuple(shape), dtype=dtype, device=HOST)


class ShapeSource(Source):
    """A published tensor of which only the type and the shape are known.

    dtype: its safetensors name. shape: as stored, so an FP4 byte is one place of it.
    """

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.nbytes = math.prod(shape) * PUBLISHED_DTYPES[dtype].itemsize
        self.file = ""
        self.offset = 0

    def read(self) -> Tensor:
        """Raises ValueError: there are no values."""
        raise ValueError(f"{self.name}: only its shape is known, so it cannot be read")

    def map(self) -> Tensor:
        """Raises ValueError: there are no values."""
        return self.read()

    def rows(self, start: int, stop: int) -> ShapeSource:
        """The slice [start, stop) along the first dimension."""
        return ShapeSource(self.name, self.dtype, (stop - start, *self.shape[1:]))


class Shapes(Contract):
    """Results have the right shapes and dtypes; nothing is computed, read or written.

    The quantised half of an activation is left out: its scheme says that there is one.
    """

    device = HOST

    def pack_vector(self, source: Source) -> Tensor:
        return empty(source.shape, torch.float32)

    def pack_linear(self, source: LinearSource) -> PackedLinear:
        packed = PackedLinear()
        packed.shape, packed.kind = source.shape, source.kind
        return packed

    def pack_table(self, source: LinearSource) -> PackedTable:
        packed = PackedTable()
        packed.shape, packed.kind = source.shape, source.kind
        return packed

    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        packed, first = PackedExperts(), sources[0].w1
        packed.num_slots, packed.kind = len(sources), first.kind
        packed.intermediate, packed.hidden = first.shape
        return packed

    def embed(self, table: PackedTable, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return empty((ids.shape[0], table.shape[1]), dtype)

    def quantise(self, x: Tensor, scheme: Scheme | None) -> Activation:
        return Activation(x, None, scheme)

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        return empty((a.values.shape[0], w.shape[0]), out_dtype)

    def grouped_linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        rows, groups = a.values.shape[:2]
        return empty((rows, groups, w.shape[0] // groups), out_dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.empty_like(x)

    def rope(
        self, x: Tensor, positions: Tensor, frequencies: Tensor, inverse: bool, numerics: Numerics
    ) -> Tensor:
        return torch.empty_like(x)

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        (rows, count), wide = streams.shape[:2], accumulation_dtype(streams.dtype)
        weights = empty((rows, count), wide)
        return Mix(weights, weights, empty((rows, count, count), wide))

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        return empty((streams.shape[0], streams.shape[2]), streams.dtype)

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        return torch.empty_like(streams)

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        return empty((history.shape[0], len(hash.primes)), torch.int64)

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        values = empty((rows.shape[0], rows.shape[1] * table.shape[1]), dtype)
        return Activation(values, None, Scheme.FP8_BLOCK32 if table.kind == "fp8" else None)

    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
        return torch.empty_like(streams)

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        return None

    def load(
        self, region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
    ) -> Tensor:
        return empty((entries.shape[0], region.width), dtype)

    def compress(
        self,
        values: Tensor,
        gates: Tensor | None,
        state: CompressorState | None,
        batch: Batch,
        ratio: int,
        dtype: torch.dtype,
    ) -> Compressed:
        return Compressed(empty(values.shape, dtype), empty(values.shape[:1], torch.int64))

    def copy(self, pool: Pool, pairs: Tensor) -> None:
        return None

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        return empty((blocks.shape[0], pool.image_bytes), torch.uint8)

    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        return None

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
        return empty((weights.shape[0], width), weights.dtype)

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        return empty((scores.shape[0], k), torch.int32)

    def top(
        self, scores: Tensor, visible: Tensor, k: int, candidates: Tensor | None, size: int
    ) -> Tensor:
        return empty((scores.shape[0], k), torch.int32)

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
        return torch.empty_like(queries)

    def route(
        self,
        logits: Tensor,
        bias: Tensor,
        image_bias: Tensor,
        image_mask: Tensor,
        k: int,
        scale: float,
    ) -> Routing:
        shape = logits.shape[0], k
        return Routing(empty(shape, torch.int32), empty(shape, logits.dtype))

    def dispatch(self, a: Activation, routing: Routing, group: Group) -> Routed:
        return Routed(a, routing, group)

    def swiglu(
        self, gate: Tensor, up: Tensor, limit: float, weights: Tensor | None, numerics: Numerics
    ) -> Activation:
        return Activation(torch.empty_like(gate), None, numerics.activation_scheme)

    def expert_mlp(
        self, routed: Routed, experts: PackedExperts, limit: float, numerics: Numerics
    ) -> Routed:
        shape = *routed.routing.ids.shape, experts.hidden
        routed.outputs = empty(shape, routed.activation.dtype)
        return routed

    def combine(self, routed: Routed, shared: Tensor, numerics: Numerics) -> Tensor:
        return torch.empty_like(shared)

    def mask(self, logits: Tensor, bits: Tensor) -> Tensor:
        return torch.empty_like(logits)

    def process(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        return torch.empty_like(logits)

    def sample(self, logprobs: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
        return empty(logprobs.shape[:1], torch.int64)

    def top_logprobs(self, logprobs: Tensor, k: int) -> TopLogprobs:
        shape = logprobs.shape[0], k
        return TopLogprobs(empty(shape, torch.int64), empty(shape, logprobs.dtype))
