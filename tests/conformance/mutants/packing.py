"""Mutants of the packers of matrices, tables and vectors: the reference with one fault each.

A fault is what its docstring says; everything else is right. Those of experts are in `slots`.
"""

from __future__ import annotations

from torch import Tensor

from deepinfer.backend import LinearSource, PackedLinear, PackedTable
from deepinfer.conformance.case import Failure
from deepinfer_reference.packed import ReferenceLinear, ReferenceTable
from tests.conformance.mutants.variant import Variant, with_result


class _Repacked(Variant):
    def pack_linear(self, source: LinearSource) -> PackedLinear:
        packed = super().pack_linear(source)
        assert isinstance(packed, ReferenceLinear)
        self.spoil(packed)
        return packed

    def spoil(self, packed: ReferenceLinear) -> None:
        raise NotImplementedError


class NibblesSwapped(_Repacked, seen_at="pack_linear linear"):
    """FP4 weights have their even columns in the high nibble."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.kind == "fp4":
            packed.weight = (packed.weight & 15) << 4 | packed.weight >> 4


class ScaleOfNextBlock(_Repacked, seen_at="pack_linear grouped_linear"):
    """FP8 weights take the scale of the block of columns before."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.kind == "fp8" and packed.scale is not None:
            packed.scale = packed.scale.roll(1, 1)


class LastScaleDefaulted(_Repacked, seen_at="pack_linear"):
    """The last block scale of FP8 and FP4 weights is 1."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.scale is not None:
            packed.scale = packed.scale.clone()
            packed.scale[-1, -1] = 127


class RoundedAtLoad(_Repacked, seen_at="pack_linear linear logits"):
    """Weights stored in float32 are rounded to bf16 when they are packed."""

    def spoil(self, packed: ReferenceLinear) -> None:
        if packed.kind == "fp32":
            packed.weight = packed.weight.bfloat16().float()


class TableScaleOfNextRow(Variant, seen_at="pack_table"):
    """Rows of FP8 tables take the scales of the row before."""

    def pack_table(self, source: LinearSource) -> PackedTable:
        packed = super().pack_table(source)
        assert isinstance(packed, ReferenceTable)
        if packed.scale is not None:
            packed.scale = packed.scale.roll(1, 0)
        return packed


class VectorRoundedAtLoad(Variant, seen_at="pack_vector"):
    """Vectors stored in float32 are rounded to bf16 when they are packed."""

    pack_vector = with_result("pack_vector", lambda own: own.bfloat16().to(own.dtype))


class VectorInBf16(Variant, seen_at="pack_vector", failure=Failure.DTYPE):
    """Vectors stored in float32 are packed as bf16."""

    pack_vector = with_result("pack_vector", Tensor.bfloat16)


class VectorFlattened(Variant, seen_at="pack_vector", failure=Failure.SHAPE):
    """A small matrix is packed as one row of numbers."""

    pack_vector = with_result("pack_vector", Tensor.flatten)
