"""Row tiles: every tile has 16 rows, the last one filled up with zeros."""

from __future__ import annotations

import pytest
import torch

from deepinfer_reference import tiling


@pytest.mark.parametrize(("rows", "expected"), [(0, 1), (1, 1), (16, 1), (17, 2), (32, 2), (40, 3)])
def test_tiles_are_whole(rows, expected):
    x, flags = torch.ones(rows, 3), torch.ones(rows, dtype=torch.bool)
    found = list(tiling.tiles(x, flags))
    assert len(found) == expected
    for values, marks in found:
        assert values.shape == (16, 3)
        assert marks.shape == (16,)
    assert sum(int(values.sum()) for values, _ in found) == 3 * rows


@pytest.mark.parametrize("rows", [0, 1, 16, 17, 40])
def test_row_tiles_join_in_order(rows):
    x = torch.arange(rows * 2).view(rows, 2)
    assert torch.equal(tiling.row_tiles(lambda tile: tile + 1, x), x + 1)
    doubled, halves = tiling.row_tiles_of(lambda tile: (tile * 2, tile[:, :1]), x)
    assert torch.equal(doubled, x * 2)
    assert torch.equal(halves, x[:, :1])


@pytest.mark.parametrize("width", [1, 32768, 32769, 100000])
def test_row_sum(width):
    x = torch.ones(3, width)
    assert tiling.row_sum(x).tolist() == [[width]] * 3


def test_align_last_appends_zeros():
    assert torch.equal(tiling.align_last(torch.ones(2, 16)), torch.ones(2, 16))
    filled = tiling.align_last(torch.ones(2, 17))
    assert filled.shape == (2, 32)
    assert filled.sum() == 34


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations_agree_with_torch(dtype):
    x = torch.linspace(-100, 100, 401, dtype=dtype)
    for ours, theirs in (
        (tiling.sigmoid, torch.sigmoid),
        (tiling.silu, torch.nn.functional.silu),
        (tiling.softplus, torch.nn.functional.softplus),
    ):
        assert torch.allclose(ours(x), theirs(x), rtol=1e-5, atol=1e-38)
