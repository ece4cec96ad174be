"""Stored weights: scale grids, nibble order, row slices."""

from __future__ import annotations

import pytest
import torch

from deepinfer.errors import UsageError
from deepinfer.formats import fp4_weight, fp8_rows, fp8_weight

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def random_fp8(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 256, (rows, columns), generator=generator).to(torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    grid = (-(-rows // 32), -(-columns // 32))
    return codes, torch.randint(100, 140, grid, generator=generator).to(torch.uint8)


def expected_fp8(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Element by element as the specification, section 2.3, writes it."""
    weight = codes.view(torch.float8_e4m3fn).double()
    rows, columns = codes.shape
    for a in range(rows):
        for b in range(columns):
            weight[a, b] *= 2.0 ** (int(scale[a // 32, b // 32]) - 127)
    return weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (40, 64), (32, 50), (33, 65), (1, 1)])
def test_fp8_weights_have_one_scale_per_tile(dtype, rows, columns):
    codes, scale = random_fp8(rows, columns)
    values = fp8_weight(codes, scale, dtype)
    assert values.dtype == dtype
    assert torch.equal(values.double(), expected_fp8(codes, scale))


@pytest.mark.parametrize(
    ("first", "last"), [(0, 32), (32, 96), (32, 64), (5, 70), (31, 33), (90, 96)]
)
def test_fp8_row_slices_keep_the_scale_of_their_tile(first, last):
    codes, scale = random_fp8(96, 64)
    whole = fp8_weight(codes, scale, torch.float32)
    part = fp8_weight(codes[first:last], scale, torch.float32, first_row=first)
    assert torch.equal(part, whole[first:last])


def test_a_scale_cut_with_the_rows_counts_from_its_own_tile():
    codes, scale = random_fp8(96, 64)
    whole = fp8_weight(codes, scale, torch.float32)
    part = fp8_weight(codes[40:70], scale[1:3], torch.float32, first_row=40 % 32)
    assert torch.equal(part, whole[40:70])


def test_the_stored_bytes_are_left_as_they_were():
    codes, scale = random_fp8(64, 64)
    before = codes.clone(), scale.clone()
    fp8_weight(codes, scale, torch.float32)
    assert torch.equal(codes, before[0])
    assert torch.equal(scale, before[1])


@pytest.mark.parametrize(
    ("shape", "first_row"), [((1, 2), 0), ((2, 1), 0), ((2, 3), 0), ((2, 2), 1), ((2, 2), -1)]
)
def test_a_scale_that_does_not_cover_the_rows_is_an_error(shape, first_row):
    codes = torch.zeros(64, 64, dtype=torch.uint8)
    with pytest.raises(UsageError, match="one byte per tile of 32 x 32"):
        fp8_weight(codes, torch.zeros(shape, dtype=torch.uint8), torch.float32, first_row)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp4_weights_hold_the_even_column_in_the_low_nibble(dtype):
    packed = torch.arange(256).to(torch.uint8).reshape(8, 32)
    scale = torch.arange(119, 135).to(torch.uint8).reshape(8, 2)
    values = fp4_weight(packed, scale, dtype)
    assert values.shape == (8, 64)
    for row in range(8):
        for column in range(64):
            byte = int(packed[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 0xF
            expected = E2M1[code] * 2.0 ** (int(scale[row, column // 32]) - 127)
            assert values[row, column] == expected, (row, column)


def test_fp4_rows_need_nothing_but_their_own_scales():
    packed = torch.arange(256).to(torch.uint8).reshape(8, 32)
    scale = torch.arange(119, 135).to(torch.uint8).reshape(8, 2)
    whole = fp4_weight(packed, scale, torch.float32)
    assert torch.equal(fp4_weight(packed[3:5], scale[3:5], torch.float32), whole[3:5])


@pytest.mark.parametrize("dtype", DTYPES)
def test_engram_rows_have_one_scale_per_row_and_32_columns(dtype):
    codes, _ = random_fp8(6, 64)
    scale = torch.arange(121, 133).to(torch.uint8).reshape(6, 2)
    expected = codes.view(torch.float8_e4m3fn).double()
    expected *= torch.exp2(scale.double() - 127).repeat_interleave(32, dim=1)
    assert torch.equal(fp8_rows(codes, scale, dtype).double(), expected)
    by_token = fp8_rows(codes.reshape(2, 3, 64), scale.reshape(2, 3, 2), dtype)
    assert torch.equal(by_token.double().reshape(6, 64), expected)


def test_scale_byte_0_is_two_to_the_minus_127_and_byte_255_is_nan():
    codes = torch.full((2, 32), 0x38, dtype=torch.uint8)  # 1.0
    scale = torch.tensor([[0], [255]], dtype=torch.uint8)
    for dtype in DTYPES:
        values = fp8_rows(codes, scale, dtype)
        assert values[0].tolist() == [2.0**-127] * 32
        assert values[1].isnan().all()


def test_scales_of_another_width_are_an_error():
    codes = torch.zeros(4, 64, dtype=torch.uint8)
    with pytest.raises(UsageError, match="one scale per 32 channels"):
        fp8_rows(codes, torch.zeros(4, 1, dtype=torch.uint8), torch.float32)
