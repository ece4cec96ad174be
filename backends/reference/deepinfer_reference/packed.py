"""What the reference keeps of weights: the published bytes, decoded a few rows at a time.

On the CPU the bytes stay in the mapped file; on another device they are copied there as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from deepinfer.backend import (
    ExpertSource,
    LinearSource,
    PackedExperts,
    PackedLinear,
    PackedTable,
    Source,
)
from deepinfer.formats import fp4_weight, fp8_weight

SCALE_ROWS = 32  # matrix rows that share a row of FP8 block scales


def placed(source: Source, device: torch.device, resident: bool = False) -> Tensor:
    """The stored values on a device: the mapped file itself on the CPU, a copy elsewhere.

    resident: a copy on the CPU too.
    """
    if resident:
        return source.read().to(device)
    mapped = source.map()
    return mapped if device.type == "cpu" else mapped.to(device)


class ReferenceLinear(PackedLinear):
    """A matrix [M, K] in its stored bytes: `weight` and, for FP8 and FP4, `scale`."""

    def __init__(
        self, weight: Tensor, scale: Tensor | None, kind: str, shape: tuple[int, int], mapped: bool
    ) -> None:
        self.weight = weight
        self.scale = scale
        self.kind = kind
        self.shape = shape
        size = weight.nbytes + (scale.nbytes if scale is not None else 0)
        self.nbytes = 0 if mapped else size
        self.mapped_bytes = size if mapped else 0

    @classmethod
    def pack(cls, source: LinearSource, device: torch.device) -> Self:
        """Take a source on a device."""
        resident = source.resident
        scale = placed(source.scale, device, resident) if source.scale is not None else None
        weight = placed(source.weight, device, resident)
        mapped = device.type == "cpu" and not resident
        return cls(weight, scale, source.kind, source.shape, mapped)

    @property
    def is_quantised(self) -> bool:
        """FP8 or FP4: a matmul reads the quantised half of its input where there is one."""
        return self.kind in ("fp8", "fp4")

    def values(self, start: int, stop: int, dtype: torch.dtype, round_to_bf16: bool) -> Tensor:
        """Rows start..stop-1 in `dtype`; a stored fp32 weight is rounded to bf16 first if asked."""
        weight = self.weight[start:stop]
        if self.kind == "fp8":
            assert self.scale is not None
            first = start // SCALE_ROWS
            scale = self.scale[first : -(-stop // SCALE_ROWS)]
            return fp8_weight(weight, scale, dtype, start - first * SCALE_ROWS)
        if self.kind == "fp4":
            assert self.scale is not None
            return fp4_weight(weight, self.scale[start:stop], dtype)
        if round_to_bf16 and self.kind == "fp32":
            weight = weight.to(torch.bfloat16)
        return weight.to(dtype)


class ReferenceTable(PackedTable, ReferenceLinear):
    """A table [rows, width] in its stored bytes; only gathered rows are ever decoded."""


@dataclass(frozen=True)
class Expert:
    """The three matrices of one expert: w1 gate [I, H], w2 down [H, I], w3 up [I, H]."""

    w1: ReferenceLinear
    w2: ReferenceLinear
    w3: ReferenceLinear

    @property
    def tensors(self) -> list[Tensor]:
        """Stored tensors in the order in which a slot is exported."""
        found = []
        for matrix in (self.w1, self.w2, self.w3):
            found.append(matrix.weight)
            if matrix.scale is not None:
                found.append(matrix.scale)
        return found


class ReferenceExperts(PackedExperts):
    """The experts of a layer.

    On the CPU `experts` is a list over the mapped file, chosen from by number. On another device
    the bytes of all slots are stacked, so that an expert is chosen by a device scalar with
    `index_select` and the host need not know which one it is.
    """

    def __init__(self, sources: Sequence[ExpertSource], device: torch.device) -> None:
        packed = [
            Expert(*(ReferenceLinear.pack(part, device) for part in (one.w1, one.w2, one.w3)))
            for one in sources
        ]
        self.experts = packed
        self.num_slots = len(packed)
        self.intermediate, self.hidden = packed[0].w1.shape
        self.kind = packed[0].w1.kind
        self.stacks: list[Tensor] | None = None
        if device.type != "cpu":
            columns = zip(*(expert.tensors for expert in packed), strict=True)
            self.stacks = [torch.stack(column) for column in columns]
            self.experts = [
                _rebuilt(packed[0], [stack[slot] for stack in self.stacks])
                for slot in range(self.num_slots)
            ]
        for expert in self.experts:
            for matrix in (expert.w1, expert.w2, expert.w3):
                self.nbytes += matrix.nbytes
                self.mapped_bytes += matrix.mapped_bytes

    def select(self, slot: Tensor) -> Expert:
        """The expert of a device scalar [1] int64; the host does not wait for its value."""
        assert self.stacks is not None
        chosen = [stack.index_select(0, slot)[0] for stack in self.stacks]
        return _rebuilt(self.experts[0], chosen)

    def export_slot(self, slot: int) -> Tensor:
        """The stored bytes of w1, w2, w3, each followed by its scale: uint8 [slot_bytes]."""
        self._check(slot)
        return torch.cat([_as_bytes(tensor) for tensor in self.experts[slot].tensors])

    def import_slot(self, slot: int, data: Tensor) -> None:
        """Replace a slot by exported bytes; a mapped slot becomes a private copy."""
        self._check(slot)
        old = self.experts[slot].tensors
        sizes = [tensor.nbytes for tensor in old]
        if data.dtype != torch.uint8 or data.shape != (sum(sizes),):
            raise ValueError(
                f"a slot holds uint8 [{sum(sizes)}] bytes, not {data.dtype} {list(data.shape)}; "
                "pass what export_slot of the same backend returned"
            )
        pieces = torch.split(data, sizes)
        if self.stacks is not None:
            for tensor, piece in zip(old, pieces, strict=True):
                _as_bytes(tensor).copy_(piece)
            return
        new = [
            piece.clone().view(tensor.dtype).view(tensor.shape)
            for tensor, piece in zip(old, pieces, strict=True)
        ]
        before = self.experts[slot]
        self.experts[slot] = _rebuilt(before, new)
        if before.w1.mapped_bytes:
            self.mapped_bytes -= sum(sizes)
            self.nbytes += sum(sizes)

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"expert slot {slot} is outside 0..{self.num_slots - 1}")


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _rebuilt(expert: Expert, tensors: list[Tensor]) -> Expert:
    """An expert of the same kinds and shapes around other tensors."""
    remaining = iter(tensors)
    matrices = []
    for matrix in (expert.w1, expert.w2, expert.w3):
        weight = next(remaining)
        scale = next(remaining) if matrix.scale is not None else None
        matrices.append(ReferenceLinear(weight, scale, matrix.kind, matrix.shape, False))
    return Expert(*matrices)
