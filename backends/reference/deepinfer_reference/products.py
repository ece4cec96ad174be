"""Matrix products of the reference: every one is made of products of 16 rows by 16 columns.

A BLAS chooses its kernel and its split between threads, and with them the order of a sum, by the
shape and the alignment of the operands. Measured with torch and MKL, float32 and float64, 1 to 64
threads, several instruction sets: the product of a tile of 16 rows with a whole weight
changes bits with the number of threads (float32 with 24 or 40 columns, float64 with K >= 512),
and with a row's place in the tile where K is odd. A batch of products [16, K] x [K, 16] with K a
multiple of 16 changed none, from a batch of two on; a batch of one did. So weights are cut into
blocks of 16 columns, at least two, and multiplied with `bmm`.

Attention batches over the 16 rows of a tile instead: [heads, width] x [width, keys] for each row,
widths and keys multiples of 16. No bits changed up to 16 threads; above, float64 splits a product.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.backend import Activation, accumulation_dtype
from deepinfer.formats import dequantise
from deepinfer_reference.packed import ReferenceLinear
from deepinfer_reference.tiling import ROWS, align_last, tiles

WEIGHT_ROWS = 256
BLOCK = 16
FEWEST_BLOCKS = 2


def column_blocks(matrix: Tensor) -> Tensor:
    """A weight [N, K] as the operand of `tile_product`: [blocks, K', 16], filled up with zeros."""
    count = max(FEWEST_BLOCKS, -(-matrix.shape[0] // BLOCK))
    aligned = align_last(matrix)
    missing = count * BLOCK - matrix.shape[0]
    if missing:
        aligned = functional.pad(aligned, (0, 0, 0, missing))
    return aligned.view(count, BLOCK, -1).transpose(1, 2)


def tile_product(x: Tensor, blocks: Tensor) -> Tensor:
    """x [16, K'] times the weight of `column_blocks`: -> [16, blocks, 16], a view."""
    return torch.bmm(x.expand(blocks.shape[0], -1, -1), blocks).transpose(0, 1)


def operand(a: Activation, weight: ReferenceLinear) -> Tensor:
    """The input of a product in the precision that it is summed in.

    The dequantised half where the weight is FP8 or FP4 and there is one, else the values.
    """
    wide = accumulation_dtype(a.dtype)
    if weight.is_quantised and a.quantised is not None:
        assert a.scheme is not None
        return dequantise(a.quantised.codes, a.quantised.scales, a.scheme, wide)
    return a.values.to(wide)


def product(
    x: Tensor,
    weight: ReferenceLinear,
    out_dtype: torch.dtype,
    first_row: int = 0,
    rows: int | None = None,
) -> Tensor:
    """x [T, K] float32 or float64 times rows of a weight [M, K] transposed: -> [T, rows].

    The weight is decoded once, 256 rows at a time, and never as a whole. The result is allocated
    before the first piece: a small block that outlives a piece would keep the allocator from
    using the piece's memory again.
    """
    count = weight.shape[0] if rows is None else rows
    row_tiles = [tile for (tile,) in tiles(align_last(x))]
    round_weight = out_dtype == torch.bfloat16
    result = x.new_empty((len(row_tiles) * ROWS, count), dtype=out_dtype)
    for start in range(0, count, WEIGHT_ROWS):
        stop = min(start + WEIGHT_ROWS, count)
        decoded = weight.values(first_row + start, first_row + stop, x.dtype, round_weight)
        blocks = column_blocks(decoded)
        for index, tile in enumerate(row_tiles):
            part = tile_product(tile, blocks).flatten(1)[:, : stop - start]
            result[index * ROWS : (index + 1) * ROWS, start:stop] = part
    return result[: x.shape[0]]
