"""Cache family: the paged FP4 and FP8 store, and the compressor that feeds it.

Byte formats: `deepinfer.formats`. Source: model specification, sections 4.4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.backend.batch import Batch, Pool, Region
from deepinfer.backend.dense import Dense
from deepinfer.backend.facts import hidden_of, unquantised_cache, width_of
from deepinfer.backend.operators import primitive, step
from deepinfer.backend.values import (
    Activation,
    Compressed,
    Numerics,
    PackedLinear,
    accumulation_dtype,
)


@dataclass(frozen=True)
class CompressorState:
    """Pending members of one compressor: `members` [slots, ring, 2, D], value then gate.

    fp32 (float64 in float64 compute), addressed by position modulo `ring`; ring = ratio plus
    the tokens that may be taken back. Slot 0 is never handed out.
    """

    members: Tensor

    @property
    def ring(self) -> int:
        """Positions kept per slot."""
        return self.members.shape[1]


@dataclass(frozen=True)
class CompressorWeights:
    """Packed weights of a KV-source layer: its compressor and its index keys.

    wgate is None for ratio 1. frequencies [R/2] float32 of the compressed layers.
    """

    wkv: PackedLinear
    wgate: PackedLinear | None
    norm: Tensor
    wk: PackedLinear
    k_norm: Tensor
    frequencies: Tensor
    ratio: int
    eps: float


class Cache(Dense):
    """Operators that write and read the pools. Only these write in place."""

    @primitive(
        rows="values",
        length="batch.max_context",
        writes="region.pool.data",
        facts=lambda call: {**width_of(call.values), "format": call.region.format.name},
    )
    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        """Quantise values [T, D] into the entries [T] int64 of the rows' sequences, in place.

        -1 skips the row. Bytes are those of the region's format for every compute precision and
        numeric mode; all other bytes of the pool stay as they are.
        """
        raise NotImplementedError

    @primitive(
        rows="entries",
        length="batch.max_context",
        facts=lambda call: {
            "width": call.region.width,
            "format": call.region.format.name,
            "dtype": call.dtype,
        },
    )
    def load(
        self, region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
    ) -> Tensor:
        """Dequantised entries: sequence [M] and entries [M] int64 -> [M, D]; -1 gives zeros."""
        raise NotImplementedError

    @primitive(
        rows="values",
        writes="state.members",
        facts=lambda call: {
            "ratio": call.ratio,
            "width": call.values.shape[1],
            "dtype": call.dtype,
        },
    )
    def compress(
        self,
        values: Tensor,
        gates: Tensor | None,
        state: CompressorState | None,
        batch: Batch,
        ratio: int,
        dtype: torch.dtype,
    ) -> Compressed:
        """Merge `ratio` consecutive tokens into one latent, rounded to `dtype`.

        values, gates [T, D] fp32. A row whose position completes a group yields the group's latent
        (softmax of the gates over the members, per channel) and its entry number; other rows yield
        entry -1. Members of earlier steps come from `state`, and this step's members are left
        there, so that a step may be taken back by as many rows as the ring holds. Ratio 1 has no
        gates and no state and returns the values with entry = position.
        """
        raise NotImplementedError

    @primitive(rows="pairs", writes="pool.data", facts=lambda call: {}, per_sequence=True)
    def copy(self, pool: Pool, pairs: Tensor) -> None:
        """Copy whole blocks inside a pool: pairs [P, 2] int64 of (from, to)."""
        raise NotImplementedError

    @primitive(rows="blocks", facts=lambda call: {})
    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        """Canonical images of blocks [M] int64: -> uint8 [M, image_bytes].

        UnsupportedOperatorError for a pool that has none.
        """
        raise NotImplementedError

    @primitive(rows="blocks", writes="pool.data", facts=lambda call: {})
    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        """Write canonical images [M, image_bytes] uint8 into blocks [M] int64.

        UnsupportedOperatorError for a pool that has none.
        """
        raise NotImplementedError

    @step(
        rows="x",
        length="batch.max_context",
        facts=lambda call: {
            **width_of(call.x),
            "format": call.region.format.name,
            "numerics": call.numerics,
        },
    )
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
        """`rms_norm`, `rope`, then `store`: x [T, D]."""
        normed = self.rms_norm(x, weight, eps)
        rotated = self.rope(normed, positions, frequencies, False, numerics)
        self.store(rotated, region, entries, batch)

    @step(
        rows="a.values",
        length="batch.max_context",
        facts=lambda call: {
            "ratio": call.weights.ratio,
            "head_dim": call.main.width,
            "index_dim": call.index.width,
            "numerics": call.numerics,
            **hidden_of(call.a.values),
            **unquantised_cache(call.main),
        },
    )
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
        """Compress the rows of a KV-source layer and store main entries and index keys.

        a [T, H], never quantised here: the compressor's weights are bf16. An entry's rotary
        position is that of its first token.
        """
        dtype = a.dtype
        wide = accumulation_dtype(dtype) if weights.ratio > 1 else dtype
        values = self.linear(a, weights.wkv, wide)
        gates = self.linear(a, weights.wgate, wide) if weights.wgate is not None else None
        compressed = self.compress(values, gates, state, batch, weights.ratio, dtype)
        entries = compressed.entries
        positions = entries.clamp(min=0) * weights.ratio
        latents = self.rms_norm(compressed.latents, weights.norm, weights.eps)
        rotated = self.rope(latents, positions, weights.frequencies, False, numerics)
        self.store(rotated, main, entries, batch)
        keys = self.linear(Activation(latents), weights.wk, dtype)
        self.norm_rope_store(
            keys,
            weights.k_norm,
            weights.eps,
            positions,
            weights.frequencies,
            index,
            entries,
            batch,
            numerics,
        )
