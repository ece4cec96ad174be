"""Mutants of the packers of matrices, tables and vectors: the reference with one fault each.

A fault is what its docstring says; everything else is right. Those of experts are in `slots`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import LinearSource, PackedLinear, PackedTable, Source
from deepinfer_reference.backend import ReferenceBackend
from deepinfer_reference.packed import ReferenceLinear, ReferenceTable


class _Repacked(ReferenceBackend):
    def pack_linear(self, source: LinearSource) -> PackedLinear:
        packed = super().pack_linear(source)
        assert isinstance(packed, ReferenceLinear)
        self.spoil(packed)
        return packed

    def spoil(self, packed: ReferenceLinear) -> None:
        raise NotImplementedError


class NibblesSwapped(_Repacked):
    """FP4 weights have their even columns in the high nibble."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.kind == "fp4":
            packed.weight = (packed.weight & 15) << 4 | packed.weight >> 4


class ScaleOfNextBlock(_Repacked):
    """FP8 weights take the scale of the block of columns before."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.kind == "fp8" and packed.scale is not None:
            packed.scale = packed.scale.roll(1, 1)


class LastScaleDefaulted(_Repacked):
    """The last block scale of FP8 and FP4 weights is 1."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.scale is not None:
            packed.scale = packed.scale.clone()
            packed.scale[-1, -1] = 127


class RoundedAtLoad(_Repacked):
    """Weights stored in float32 are rounded to bf16 when they are packed."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.kind == "fp32":
            packed.weight = packed.weight.bfloat16().float()


class TableScaleOfNextRow(ReferenceBackend):
    """Rows of FP8 tables take the scales of the row before."""

    def pack_table(self, source: LinearSource) -> PackedTable:
        packed = super().pack_table(source)
        assert isinstance(packed, ReferenceTable)
        if packed.scale is not None:
            packed.scale = packed.scale.roll(1, 0)
        return packed


class VectorRoundedAtLoad(ReferenceBackend):
    """Vectors stored in float32 are rounded to bf16 when they are packed."""

    def pack_vector(self, source: Source) -> Tensor:
        vector = super().pack_vector(source)
        return vector.to(torch.bfloat16).to(vector.dtype)


class VectorInBf16(ReferenceBackend):
    """Vectors stored in float32 are packed as bf16."""

    def pack_vector(self, source: Source) -> Tensor:
        return super().pack_vector(source).to(torch.bfloat16)


class VectorFlattened(ReferenceBackend):
    """A small matrix is packed as one row of numbers."""

    def pack_vector(self, source: Source) -> Tensor:
        return super().pack_vector(source).flatten()
