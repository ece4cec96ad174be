"""Engram family of the reference: hash, look-up and gate."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Activation, Engram, NgramHash, PackedTable, accumulation_dtype
from deepinfer.formats import Quantised, Scheme, fp8_rows
from deepinfer_reference.dense import table_rows
from deepinfer_reference.packed import ReferenceTable
from deepinfer_reference.tiling import row_sum, row_tiles, sigmoid

SMALLEST_GATE = 1e-6


class ReferenceEngram(Engram):
    """Operators of the n-gram memory."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        """Integers only: blocking, multiply, exclusive or, remainder (8.5)."""
        blocked = (history < 0).cumsum(-1) > 0
        ids = torch.where(blocked, hash.pad, history)
        products = ids * hash.multipliers  # [T, n]
        mixed = products[:, 0]
        columns = []
        for k in range(1, history.shape[1]):
            mixed = mixed ^ products[:, k]
            here = slice((k - 1) * hash.heads, k * hash.heads)
            remainder = torch.remainder(mixed.unsqueeze(-1), hash.primes[here])
            columns.append(remainder + hash.offsets[here])
        return torch.cat(columns, -1)

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        """Stored rows side by side, with their bytes where the table is FP8."""
        assert isinstance(table, ReferenceTable)
        codes = _side_by_side(table.weight, rows)
        if table.scale is None:
            return Activation(codes.to(dtype))
        scales = _side_by_side(table.scale, rows)
        values = fp8_rows(codes, scales, dtype)
        return Activation(values, Quantised(codes, scales), Scheme.FP8_BLOCK32)

    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
        """A gate per stream from its match with its key; a blocked row stays as it is."""
        count, width = streams.shape[1:]
        wide = accumulation_dtype(streams.dtype)
        weight = q_weight.to(wide) * k_weight.to(wide)

        def tile(streams: Tensor, memory: Tensor, blocked: Tensor) -> Tensor:
            values = streams.to(wide)
            parts = memory.to(wide).view(-1, count + 1, width)
            keys, value = parts[:, :count], parts[:, count:]
            match = row_sum(values * weight * keys)
            match = match * _reciprocal_rms(values, eps) * _reciprocal_rms(keys, eps)
            match = match * width**-0.5
            size = torch.sqrt(match.abs().clamp(min=SMALLEST_GATE))
            gate = sigmoid(torch.copysign(size, match))
            added = (values + gate * value).to(streams.dtype)
            return torch.where(blocked.view(-1, 1, 1), streams, added)

        return row_tiles(tile, streams, memory, blocked)


def _side_by_side(table: Tensor, rows: Tensor) -> Tensor:
    """Rows [T, C] of a table [N, W]: -> [T, C*W]."""
    found = table_rows(table, rows.flatten(), "Engram row")
    return found.view(*rows.shape, table.shape[1]).flatten(1)


def _reciprocal_rms(x: Tensor, eps: float) -> Tensor:
    return 1 / torch.sqrt(row_sum(x * x) / x.shape[-1] + eps)
