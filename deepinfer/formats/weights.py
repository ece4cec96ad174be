"""Values of quantised weights as the checkpoint stores them (model specification, section 2.3).

All results are exact in bfloat16, float32 and float64 while they stay in the type's range.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import UsageError
from deepinfer.formats import e4m3, ue8m0
from deepinfer.formats.quantise import Scheme, dequantise

TILE = 32


def fp8_weight(codes: Tensor, scale: Tensor, dtype: torch.dtype, first_row: int = 0) -> Tensor:
    """Values of a dense FP8 matrix, or of some of its rows.

    `codes`: e4m3 bytes, uint8 [o, i], the rows `first_row .. first_row + o - 1` of the matrix.
    `scale`: ue8m0 bytes, uint8 [rows of tiles, ceil(i / 32)], one per tile of 32 x 32; its row 0
    belongs to the matrix rows 0..31 whatever `first_row` is. A scale that was cut together with
    the codes, from tile row `first_row // 32` on, is used with `first_row % 32`.
    Returns [o, i] in `dtype`. Raises `UsageError` when the scale does not cover the codes.
    """
    rows, columns = codes.shape
    if (
        first_row < 0
        or scale.shape[0] * TILE < first_row + rows
        or (scale.shape[1] != -(-columns // TILE))
    ):
        raise UsageError(
            f"fp8 weight rows {first_row}..{first_row + rows - 1} of {columns} columns with a "
            f"scale of shape {tuple(scale.shape)}; the scale must have one byte per tile of "
            f"{TILE} x {TILE}, counted from row 0 of the matrix"
        )
    values = e4m3.decode(codes, dtype)
    factors = ue8m0.decode(scale, dtype)
    if first_row % TILE == 0 and rows % TILE == 0 and columns % TILE == 0:
        first_tile = first_row // TILE
        factors = factors[first_tile : first_tile + rows // TILE]
        tiles = values.view(rows // TILE, TILE, columns // TILE, TILE)
        tiles.mul_(factors[:, None, :, None])
        return values
    tile_row = torch.arange(first_row, first_row + rows, device=codes.device) // TILE
    tile_column = torch.arange(columns, device=codes.device) // TILE
    return values.mul_(factors[tile_row][:, tile_column])


def fp4_weight(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of a routed expert's FP4 matrix, or of any of its rows.

    `packed`: two e2m1 codes per byte, even column in the low nibble, uint8 [o, i / 2];
    `scale`: ue8m0 bytes, uint8 [o, i / 32], one per row and 32 columns. Returns [o, i] in `dtype`.
    """
    return dequantise(packed, scale, Scheme.MXFP4, dtype)


def fp8_rows(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of gathered rows of an Engram table.

    `codes`: e4m3 bytes, uint8 [..., w]; `scale`: ue8m0 bytes, uint8 [..., w / 32], one per row and
    32 columns. Returns [..., w] in `dtype`.
    """
    return dequantise(codes, scale, Scheme.FP8_BLOCK32, dtype)
