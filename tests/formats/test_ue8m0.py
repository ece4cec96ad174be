"""ue8m0: exact powers of two and exact ceilings of logarithms."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from deepinfer.errors import UsageError
from deepinfer.formats import ue8m0

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
BYTES = torch.arange(256).to(torch.uint8)


def exact_ceil_log2(value: float) -> int:
    fraction = Fraction(value)
    exponent = fraction.numerator.bit_length() - fraction.denominator.bit_length() - 1
    while Fraction(2) ** exponent < fraction:
        exponent += 1
    return exponent


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_decodes_to_its_exact_power_of_two(dtype):
    values = ue8m0.decode(BYTES, dtype).tolist()
    assert values[:255] == [math.ldexp(1.0, byte - 127) for byte in range(255)]
    assert math.isnan(values[255])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_has_an_exact_reciprocal(dtype):
    values = ue8m0.decode_reciprocal(BYTES, dtype).tolist()
    assert values[:255] == [math.ldexp(1.0, 127 - byte) for byte in range(255)]
    assert math.isnan(values[255])


def test_the_ceiling_is_exact_for_every_positive_bfloat16(every_bf16):
    x = every_bf16[(every_bf16 > 0) & every_bf16.isfinite()]
    expected = [exact_ceil_log2(value) for value in x.tolist()]
    for dtype in DTYPES:
        exponents = ue8m0.ceil_exponent(x.to(dtype))
        assert exponents.dtype == torch.int32
        assert exponents.tolist() == expected, dtype


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, -149), (torch.float64, -1074)])
def test_the_ceiling_is_exact_at_and_beside_every_power_of_two(dtype, least):
    highest = 127 if dtype == torch.float32 else 1023
    exponents = torch.arange(least, highest + 1)
    powers = torch.tensor([math.ldexp(1.0, e) for e in exponents.tolist()], dtype=torch.float64)
    powers = powers.to(dtype)
    above = torch.nextafter(powers, torch.full_like(powers, math.inf))
    below = torch.nextafter(powers, torch.zeros_like(powers))
    assert ue8m0.ceil_exponent(powers).tolist() == exponents.tolist()
    assert ue8m0.ceil_exponent(above).tolist() == (exponents + 1).tolist()
    expected = [exact_ceil_log2(value) for value in below[1:].tolist()]
    assert ue8m0.ceil_exponent(below[1:]).tolist() == expected


@pytest.mark.parametrize(("dtype", "exponent"), [(torch.float32, 128), (torch.float64, 1024)])
def test_infinity_has_the_exponent_of_the_largest_finite_value(dtype, exponent):
    x = torch.tensor([torch.finfo(dtype).max, math.inf], dtype=dtype)
    assert ue8m0.ceil_exponent(x).tolist() == [exponent, exponent]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_byte_is_the_ceiling_at_the_borders_of_every_table_entry(index_borders, dtype):
    x = index_borders(dtype)
    x = x[x > 0]
    expected = (ue8m0.ceil_exponent(x).clamp(-127, 127) + 127).to(torch.uint8)
    assert torch.equal(ue8m0.encode_ceil(x), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_byte_saturates_and_marks_nan(dtype):
    x = torch.tensor([2.0**-127, 2.0**-130, 2.0**127, 3e38, math.inf, math.nan], dtype=dtype)
    assert ue8m0.encode_ceil(x).tolist() == [0, 0, 254, 254, 254, 255]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_finite_byte_encodes_to_itself(dtype):
    assert ue8m0.encode_ceil(ue8m0.decode(BYTES, dtype)).tolist() == BYTES.tolist()


def test_decoding_to_another_dtype_is_an_error_that_names_it():
    with pytest.raises(UsageError, match=r"torch.float16"):
        ue8m0.decode(BYTES, torch.float16)
