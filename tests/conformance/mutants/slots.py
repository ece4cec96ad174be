"""Mutants of packed experts: the reference with one fault each, named by its docstring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from deepinfer.backend import ExpertSource, PackedExperts
from deepinfer.conformance.case import Failure
from deepinfer_reference.packed import Expert, ReferenceExperts
from tests.conformance.mutants.variant import Variant


class _OtherPack(Variant):
    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        packed = super().pack_experts(sources)
        assert isinstance(packed, ReferenceExperts)
        for expert in packed.experts:
            for matrix in (expert.w1, expert.w2, expert.w3):
                if matrix.kind == "fp4":
                    self.spoil(matrix)
        return packed

    def spoil(self, matrix: Any) -> None:
        raise NotImplementedError


class NibblesSwapped(_OtherPack, seen_at="expert_mlp"):
    """FP4 weights have their even columns in the high nibble."""

    def spoil(self, matrix: Any) -> None:
        matrix.weight = (matrix.weight & 15) << 4 | matrix.weight >> 4


class ScaleOfNextBlock(_OtherPack, seen_at="expert_mlp"):
    """FP4 weights take the scale of the block of columns before."""

    def spoil(self, matrix: Any) -> None:
        matrix.scale = matrix.scale.roll(1, 1)


class LastScaleDefaulted(_OtherPack, seen_at="expert_mlp"):
    """The scale of the last block of columns is 1."""

    def spoil(self, matrix: Any) -> None:
        matrix.scale = matrix.scale.clone()
        matrix.scale[:, -1] = 127


class _OtherSlots(Variant):
    slots: type[ReferenceExperts]

    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        return self.slots(sources, self.device)


class _Wrapping(ReferenceExperts):
    def _check(self, slot: int) -> None:
        pass


class SlotsWrap(_OtherSlots, seen_at="pack_experts", failure=Failure.RAISES):
    """Slot -1 is the last one."""

    slots = _Wrapping


class _Spilling(ReferenceExperts):
    def import_slot(self, slot: int, data: Tensor) -> None:
        super().import_slot(slot, data)
        if slot + 1 < self.num_slots:
            super().import_slot(slot + 1, data)


class WritesNextSlot(_OtherSlots, seen_at="pack_experts"):
    """An imported slot overwrites the next one too."""

    slots = _Spilling


class _Forgetful(ReferenceExperts):
    def import_slot(self, slot: int, data: Tensor) -> None:
        before: Expert = self.experts[slot]
        super().import_slot(slot, data)
        self.experts[slot] = Expert(self.experts[slot].w1, before.w2, self.experts[slot].w3)


class ImportForgetsDown(_OtherSlots, seen_at="pack_experts"):
    """An imported slot keeps its old down projection."""

    slots = _Forgetful
