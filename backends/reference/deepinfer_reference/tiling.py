"""Row tiles: how the reference gives a row the same bits in every batch.

A sum may be ordered by the shape of its operand, and a vectorised function may treat the end of a
buffer apart. So every operator that rounds works on exactly 16 rows at a time, the last tile
filled up with zeros. Then a row's bits depend neither on its place, nor on the other rows, nor on
the number of threads. `products` says what matrix products need beyond that. Functions that
change bits within a tile all the same (torch's sigmoid, silu and softplus do, with an element's
place in the buffer) are written with those that do not: exp, log1p, sqrt, cos, sin, division.

What is exact needs no tiles: gathers, comparisons, sorting, integers, and byte formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

ROWS = 16
COLUMNS = 128  # columns of a tile of index scores
ALIGNMENT = 16
LONGEST_SUM = 32768  # torch may split a longer reduction between threads


def tiles(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors cut into 16 rows each, the last tile filled up with zeros.

    All have the same first dimension. Without rows there is one tile of zeros, which gives
    results of no rows their shape.
    """
    rows = tensors[0].shape[0]
    for start in range(0, max(rows, 1), ROWS):
        if start + ROWS <= rows:
            yield tuple(tensor[start : start + ROWS] for tensor in tensors)
        else:
            yield tuple(_filled(tensor[start:]) for tensor in tensors)


def row_tiles(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`function` of each tile of 16 rows, joined: tensors [T, ...] -> [T, ...]."""
    results = [function(*tile) for tile in tiles(*tensors)]
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined[: tensors[0].shape[0]]


def row_tiles_of(
    function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """`row_tiles` for a function with several results, each joined."""
    results = [function(*tile) for tile in tiles(*tensors)]
    rows = tensors[0].shape[0]
    return tuple(
        (parts[0] if len(parts) == 1 else torch.cat(parts))[:rows]
        for parts in zip(*results, strict=True)
    )


def aligned(size: int) -> int:
    """The next multiple of 16."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def align_last(x: Tensor) -> Tensor:
    """x with its last dimension filled up with zeros to a multiple of 16, contiguous."""
    missing = -x.shape[-1] % ALIGNMENT
    return functional.pad(x, (0, missing)) if missing else x.contiguous()


def row_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension, kept with size 1; in pieces where it is very long."""
    if x.shape[-1] <= LONGEST_SUM:
        return x.sum(-1, keepdim=True)
    pieces = [piece.sum(-1, keepdim=True) for piece in torch.split(x, LONGEST_SUM, -1)]
    return torch.stack(pieces).sum(0)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); torch's own sigmoid depends on an element's place in the buffer."""
    return 1 / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """ln(1 + exp(x)) without overflow, from exp and log1p for the same reason."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)), for the same reason."""
    return x / (1 + torch.exp(-x))


def _filled(x: Tensor) -> Tensor:
    return torch.cat((x, x.new_zeros(ROWS - x.shape[0], *x.shape[1:])))
