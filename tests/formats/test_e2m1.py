"""e2m1: every code, every midpoint, every bfloat16, nibble order."""

from __future__ import annotations

import pytest
import torch

from deepinfer.errors import UsageError
from deepinfer.formats import e2m1

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
CODES = torch.arange(16).to(torch.uint8)
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float64)
TIE_VALUES = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_decodes_to_its_value(dtype):
    values = e2m1.decode(CODES, dtype)
    assert (values.dtype, values.tolist()) == (dtype, VALUES)
    assert torch.signbit(values).tolist() == [False] * 8 + [True] * 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_encodes_to_itself(dtype):
    assert e2m1.encode(e2m1.decode(CODES, dtype)).tolist() == CODES.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_every_midpoint_goes_to_the_code_with_mantissa_bit_zero(dtype, sign):
    codes = e2m1.encode(sign * MIDPOINTS.to(dtype))
    assert e2m1.decode(codes, dtype).tolist() == [sign * value for value in TIE_VALUES]
    assert not (codes & 1).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_beside_a_midpoint_goes_to_the_nearer_code(dtype):
    midpoints = MIDPOINTS.to(dtype)
    below = torch.nextafter(midpoints, torch.zeros_like(midpoints))
    above = torch.nextafter(midpoints, torch.full_like(midpoints, 9))
    assert e2m1.encode(below).tolist() == list(range(7))
    assert e2m1.encode(above).tolist() == list(range(1, 8))


def test_float64_within_1e_12_of_a_midpoint_is_not_taken_for_a_tie():
    assert e2m1.encode(MIDPOINTS - 1e-12).tolist() == list(range(7))
    assert e2m1.encode(MIDPOINTS + 1e-12).tolist() == list(range(1, 8))


def test_every_bfloat16_gets_the_nearest_code(nearest, every_bf16):
    assert torch.equal(e2m1.encode(every_bf16), nearest(every_bf16, "e2m1"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_borders_of_every_table_entry_get_the_nearest_code(nearest, index_borders, dtype):
    x = index_borders(dtype)
    assert torch.equal(e2m1.encode(x), nearest(x, "e2m1"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [6.0, 6.5, 1e30, float("inf")])
def test_large_values_saturate_with_their_sign(dtype, value):
    assert e2m1.encode(torch.tensor([value, -value], dtype=dtype)).tolist() == [7, 15]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_becomes_six_with_its_sign(dtype):
    signs = torch.tensor([1.0, -1.0], dtype=dtype)
    nan = torch.copysign(torch.full((2,), float("nan"), dtype=dtype), signs)
    assert e2m1.encode(nan).tolist() == [7, 15]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_and_values_that_round_to_it_keep_their_sign(dtype):
    x = torch.tensor([0.0, -0.0, 0.25, -0.25, 1e-38, -1e-38], dtype=dtype)
    assert e2m1.encode(x).tolist() == [0, 8, 0, 8, 0, 8]


def test_the_even_channel_is_in_the_low_nibble():
    assert e2m1.pack(torch.tensor([0x1, 0xA, 0xF, 0x0], dtype=torch.uint8)).tolist() == [0xA1, 0x0F]


def test_every_byte_unpacks_to_the_codes_that_pack_to_it():
    packed = torch.arange(256).to(torch.uint8).reshape(4, 64)
    codes = e2m1.unpack(packed)
    assert codes.shape == (4, 128)
    assert codes.max() == 15
    assert torch.equal(e2m1.pack(codes), packed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_packed_bytes_equals_unpacking_first(dtype):
    packed = torch.arange(256).to(torch.uint8).reshape(4, 64)
    values, expected = e2m1.decode_packed(packed, dtype), e2m1.decode(e2m1.unpack(packed), dtype)
    assert torch.equal(values, expected)
    assert torch.equal(values.signbit(), expected.signbit())


def test_packing_an_odd_number_of_codes_is_an_error():
    with pytest.raises(UsageError, match="cannot pack 3 e2m1 codes"):
        e2m1.pack(torch.zeros(3, dtype=torch.uint8))
