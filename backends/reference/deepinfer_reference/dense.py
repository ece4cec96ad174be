"""Dense family of the reference: weights, embedding, matmuls, norm and rotation."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    Dense,
    LinearSource,
    Numerics,
    PackedLinear,
    PackedTable,
    Source,
    accumulation_dtype,
)
from deepinfer.formats import Scheme, quantise
from deepinfer_reference.packed import ReferenceLinear, ReferenceTable
from deepinfer_reference.products import operand, product
from deepinfer_reference.tiling import row_sum, row_tiles


def table_rows(tensor: Tensor, rows: Tensor, what: str) -> Tensor:
    """Rows of a table by number; a number outside it raises IndexError and never wraps."""
    try:
        return tensor.index_select(0, rows)
    except IndexError as error:
        raise IndexError(
            f"{what} outside 0..{tensor.shape[0] - 1}: lowest {int(rows.min())}, "
            f"highest {int(rows.max())}"
        ) from error


class ReferenceDense(Dense):
    """Operators on rows."""

    device: torch.device

    def pack_vector(self, source: Source) -> Tensor:
        """A private copy: vectors are small."""
        return source.read().to(self.device)

    def pack_linear(self, source: LinearSource) -> PackedLinear:
        """The mapped bytes as they are."""
        return ReferenceLinear.pack(source, self.device)

    def pack_table(self, source: LinearSource) -> PackedTable:
        """The mapped bytes as they are."""
        return ReferenceTable.pack(source, self.device)

    def embed(self, table: PackedTable, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Gather, then convert."""
        assert isinstance(table, ReferenceTable)
        return table_rows(table.weight, ids, "token id").to(dtype)

    def quantise(self, x: Tensor, scheme: Scheme | None) -> Activation:
        """Exact per group, so without tiles."""
        if scheme is None:
            return Activation(x)
        return Activation(x, quantise(x, scheme), scheme)

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        """One product."""
        assert isinstance(w, ReferenceLinear)
        return product(operand(a, w), w, out_dtype)

    def grouped_linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        """One product per group, with that group's rows of the weight."""
        assert isinstance(w, ReferenceLinear)
        x = operand(a, w)
        groups = x.shape[1]
        rows = w.shape[0] // groups
        parts = [product(x[:, g], w, out_dtype, g * rows, rows) for g in range(groups)]
        return torch.stack(parts, 1)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x * (1 / sqrt(mean(x^2) + eps)), then times the weight."""
        wide = accumulation_dtype(x.dtype)
        scale = weight.to(wide)

        def tile(x: Tensor) -> Tensor:
            values = x.to(wide)
            mean = row_sum(values * values) / x.shape[-1]
            return (values * (1 / torch.sqrt(mean + eps)) * scale).to(x.dtype)

        return row_tiles(tile, x)

    def rope(
        self,
        x: Tensor,
        positions: Tensor,
        frequencies: Tensor,
        inverse: bool,
        numerics: Numerics,
    ) -> Tensor:
        """(x0, x1) -> (x0 cos - x1 sin, x0 sin + x1 cos); the inverse negates the angle.

        The fused form multiplies and adds in float64 and rounds to float32. The product is exact
        there; the sum is rounded twice, which differs from a fused multiply-add only where the
        float64 sum is inexact and lands on a midpoint of two float32 values. Float64 compute has
        no wider type, so there both numerics round both products.
        """
        rotated = 2 * frequencies.shape[0]
        kept = x.shape[-1] - rotated
        wide = accumulation_dtype(x.dtype)
        fused = numerics is Numerics.INFER and wide == torch.float32

        def tile(x: Tensor, positions: Tensor) -> Tensor:
            angle = positions.to(torch.float32).unsqueeze(-1) * frequencies
            angle = angle.to(wide).view(-1, *[1] * (x.dim() - 2), rotated // 2)
            cos, sin = torch.cos(angle), torch.sin(angle)
            if inverse:
                sin = -sin
            x0, x1 = torch.unflatten(x[..., kept:].to(wide), -1, (-1, 2)).unbind(-1)
            if fused:
                y0 = _fused(x0, cos, -(x1 * sin))
                y1 = _fused(x0, sin, x1 * cos)
            else:
                y0 = x0 * cos - x1 * sin
                y1 = x0 * sin + x1 * cos
            turned = torch.stack((y0, y1), -1).flatten(-2).to(x.dtype)
            return torch.cat((x[..., :kept], turned), -1)

        return row_tiles(tile, x, positions)


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of float32 with one rounding of the product and sum, by way of float64."""
    return (a.double() * b.double() + c.double()).float()
