"""Weights of one layer straight from the checkpoint's bytes, decoded by `codes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.checkpoint import Checkpoint
from tests.numerics.codes import E2M1_BYTES, E4M3_BYTES, POWERS, fp8_values, to_bf16

PIECE = 512  # rows decoded at a time


class Rows(NamedTuple):
    """Some rows of a matrix: their numbers, and values [rows, K] float64."""

    first: int
    stop: int
    values: Tensor


class Stored:
    """Published tensors under a prefix. share: of large matrices, one piece in `share` is read."""

    def __init__(self, checkpoint: Checkpoint, prefix: str, share: int = 1) -> None:
        self.checkpoint = checkpoint
        self.prefix = prefix
        self.share = share

    def vector(self, name: str) -> Tensor:
        """An unquantised tensor, float64."""
        return self.checkpoint.source(f"{self.prefix}.{name}").read().double()

    def quantised(self, name: str) -> bool:
        """Is the matrix stored as FP8 or FP4?"""
        return self.checkpoint.has(f"{self.prefix}.{name}.scale")

    def rows(self, name: str) -> int:
        """Rows of a matrix."""
        return self.checkpoint.source(f"{self.prefix}.{name}.weight").shape[0]

    def pieces(self, name: str, start: int, stop: int, rounded: bool) -> Iterator[Rows]:
        """Pieces of the rows start..stop-1; rounded: a stored float32 weight to bf16."""
        for number, first in enumerate(range(start, stop, PIECE)):
            last = min(first + PIECE, stop)
            if self.share == 1 or number % self.share == 0 or last == stop:
                yield Rows(first, last, self._values(name, first, last, rounded))

    def table(self, name: str, rows: Tensor) -> Tensor:
        """Rows [T, C] of a table, side by side: float64 [T, C * W]."""
        linear = self.checkpoint.linear(f"{self.prefix}.{name}")
        picked = [linear.weight.rows(row, row + 1).read() for row in rows.flatten().tolist()]
        values = torch.cat(picked)
        if linear.scale is None:
            return values.double().view(len(rows), -1)
        scales = [linear.scale.rows(row, row + 1).read() for row in rows.flatten().tolist()]
        return fp8_values(values, torch.cat(scales)).view(len(rows), -1)

    def _values(self, name: str, start: int, stop: int, rounded: bool) -> Tensor:
        linear = self.checkpoint.linear(f"{self.prefix}.{name}")
        weight = linear.weight.rows(start, stop).read()
        if linear.kind == "fp8":
            assert linear.scale is not None
            scale = linear.scale.rows(start // 32, -(-stop // 32)).read()
            grid = POWERS[scale.long()].repeat_interleave(32, 0)[start % 32 :]
            grid = grid.repeat_interleave(32, 1)
            return _looked_up(E4M3_BYTES, weight) * grid[: stop - start, : weight.shape[1]]
        if linear.kind == "fp4":
            assert linear.scale is not None
            scale = POWERS[linear.scale.rows(start, stop).read().long()]
            pairs = _looked_up(torch.view_as_complex(E2M1_BYTES), weight)
            values = torch.view_as_real(pairs).flatten(1)
            return values.mul_(scale.repeat_interleave(32, 1))
        return to_bf16(weight.double()) if rounded else weight.double()


def _looked_up(table: Tensor, codes: Tensor) -> Tensor:
    return table.index_select(0, codes.flatten().int()).view(codes.shape)
