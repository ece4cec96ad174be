"""Mutants of the packers of tables and vectors: the reference with one fault each.

A fault is what its docstring says; everything else is right. Those of matrices are in `dense`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import LinearSource, PackedTable, Source
from deepinfer_reference.backend import ReferenceBackend
from deepinfer_reference.packed import ReferenceTable


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
