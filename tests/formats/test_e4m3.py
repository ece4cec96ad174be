"""e4m3: every code, every midpoint, every bfloat16 and the borders of every table entry."""

from __future__ import annotations

import pytest
import torch

from deepinfer.errors import UsageError
from deepinfer.formats import e4m3

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
CODES = torch.arange(256).to(torch.uint8)
GRID = CODES[:127].view(torch.float8_e4m3fn).double()
MIDPOINTS = (GRID[1:] + GRID[:-1]) / 2
LOWER = torch.arange(126)
EVEN = LOWER + LOWER % 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_decodes_as_the_native_type(dtype):
    expected = CODES.view(torch.float8_e4m3fn).to(dtype)
    torch.testing.assert_close(e4m3.decode(CODES, dtype), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_decode_with_their_sign(dtype):
    zeros = e4m3.decode(torch.tensor([0x00, 0x80], dtype=torch.uint8), dtype)
    assert torch.signbit(zeros).tolist() == [False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_encodes_to_itself(dtype):
    codes = e4m3.encode(e4m3.decode(CODES, dtype))
    numbers = (CODES & 0x7F) != 0x7F
    assert codes[numbers].tolist() == CODES[numbers].tolist()
    assert (codes[~numbers] & 0x7F).tolist() == [0x7F, 0x7F]  # a decoded NaN may lose its sign


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_midpoint_goes_to_the_even_code(dtype):
    midpoints = MIDPOINTS.to(dtype)
    assert e4m3.encode(midpoints).tolist() == EVEN.tolist()
    assert e4m3.encode(-midpoints).tolist() == (EVEN + 128).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_beside_a_midpoint_goes_to_the_nearer_code(dtype):
    midpoints = MIDPOINTS.to(dtype)
    below = torch.nextafter(midpoints, torch.zeros_like(midpoints))
    above = torch.nextafter(midpoints, torch.full_like(midpoints, 500))
    assert e4m3.encode(below).tolist() == LOWER.tolist()
    assert e4m3.encode(above).tolist() == (LOWER + 1).tolist()


def test_float64_within_1e_12_of_a_midpoint_is_not_taken_for_a_tie():
    assert e4m3.encode(MIDPOINTS * (1 - 1e-12)).tolist() == LOWER.tolist()
    assert e4m3.encode(MIDPOINTS * (1 + 1e-12)).tolist() == (LOWER + 1).tolist()


def test_every_bfloat16_gets_the_nearest_code(nearest, every_bf16):
    assert torch.equal(e4m3.encode(every_bf16), nearest(every_bf16, "e4m3"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_borders_of_every_table_entry_get_the_nearest_code(nearest, index_borders, dtype):
    x = index_borders(dtype)
    assert torch.equal(e4m3.encode(x), nearest(x, "e4m3"))


def test_random_float32_in_range_agree_with_the_native_cast():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (300_000,), generator=generator).to(torch.int32)
    spread = bits.view(torch.float32)
    x = torch.cat((spread[spread.abs() <= 448], torch.randn(100_000, generator=generator) * 60))
    x = torch.cat((x, torch.randn(100_000, generator=generator) * 2.0**-8)).clamp(-448, 448)
    assert torch.equal(e4m3.encode(x), x.to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [448.0, 449.0, 464.0, 480.0, 1e30, float("inf")])
def test_large_values_saturate_with_their_sign(dtype, value):
    x = torch.tensor([value, -value], dtype=dtype)
    assert e4m3.encode(x).tolist() == [0x7E, 0xFE]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_keeps_its_sign(dtype):
    signs = torch.tensor([1.0, -1.0], dtype=dtype)
    nan = torch.copysign(torch.full((2,), float("nan"), dtype=dtype), signs)
    assert e4m3.encode(nan).tolist() == [0x7F, 0xFF]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_below_half_the_least_subnormal_become_signed_zero(dtype):
    x = torch.tensor([2.0**-10, -(2.0**-10), 1e-30, -1e-30, 0.0, -0.0], dtype=dtype)
    assert e4m3.encode(x).tolist() == [0, 128, 0, 128, 0, 128]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reciprocals_are_those_of_ieee_division(dtype):
    codes = CODES[1:127]
    expected = 1.0 / e4m3.decode(codes, dtype).numpy()
    assert e4m3.decode_reciprocal(codes, dtype).numpy().tolist() == expected.tolist()


def test_shape_and_strides_do_not_matter():
    x = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(e4m3.encode(x.T), e4m3.encode(x).T)
    assert e4m3.encode(x[:0]).shape == (0, 6)


def test_encoding_another_dtype_is_an_error_that_names_it():
    with pytest.raises(UsageError, match=r"torch.float16.*bfloat16, float32 and float64"):
        e4m3.encode(torch.zeros(2, dtype=torch.float16))


def test_decoding_to_another_dtype_is_an_error_that_names_it():
    with pytest.raises(UsageError, match=r"torch.float16"):
        e4m3.decode(CODES, torch.float16)


def test_decoding_signed_bytes_is_an_error_that_names_the_type():
    with pytest.raises(UsageError, match=r"torch.int8"):
        e4m3.decode(CODES.view(torch.int8), torch.float32)
