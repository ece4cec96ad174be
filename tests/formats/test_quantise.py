"""Block schemes: scale rules, element rules, floors, ties, NaN and infinity."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from deepinfer.errors import UsageError
from deepinfer.formats import Scheme, dequantise, e2m1, e4m3, quantise, round_trip

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
DTYPES = [BF16, FP32, FP64]
FP8, MXFP4, NVFP4 = Scheme.FP8_BLOCK32, Scheme.MXFP4, Scheme.NVFP4
SCHEMES = list(Scheme)
VECTOR = [0.10009766, -0.20019531, 0.30078125, 1, -2.5, 3.25, 0, 5]  # specification, appendix B


def group(values: list[float], scheme: Scheme, dtype: torch.dtype) -> torch.Tensor:
    """One group [1, group_size]: the values, then zeros."""
    x = torch.zeros(1, scheme.group_size, dtype=dtype)
    x[0, : len(values)] = torch.tensor(values, dtype=dtype)
    return x


def codes_of(x: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    codes = quantise(x, scheme).codes
    return codes if scheme is FP8 else e2m1.unpack(codes)


def positive_amax(every_bf16: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Every finite non-negative bfloat16 as the maximum of its own group: [values, group_size]."""
    amax = every_bf16[every_bf16.isfinite() & ~every_bf16.signbit()]
    x = torch.zeros(len(amax), scheme.group_size, dtype=BF16)
    x[:, 3] = -amax
    return x


def spread_rows(dtype: torch.dtype, rows: int = 64, width: int = 96) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    exponents = torch.randint(-12, 13, (rows, 1), generator=generator)
    return (torch.randn(rows, width, generator=generator) * 2.0**exponents).to(BF16).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_vector_of_the_specification(dtype):
    x = group(VECTOR, FP8, BF16).to(dtype)
    codes, scales = quantise(x, FP8)
    assert scales.tolist() == [[121]]
    expected = [0.1015625, -0.203125, 0.3125, 1, -2.5, 3.25, 0, 5]
    assert dequantise(codes, scales, FP8, dtype)[0, :8].tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_mxfp4_vector_of_the_specification(dtype):
    x = group(VECTOR, MXFP4, BF16).to(dtype)
    codes, scales = quantise(x, MXFP4)
    assert scales.tolist() == [[127]]
    assert e2m1.unpack(codes)[0, :8].tolist() == [0, 8, 1, 2, 12, 5, 0, 6]
    assert codes[0, :4].tolist() == [0x80, 0x21, 0x5C, 0x60]
    values = dequantise(codes, scales, MXFP4, dtype)[0, :8]
    assert values.tolist() == [0, 0, 0.5, 1, -2, 3, 0, 4]
    assert values.signbit().tolist() == [False, True, False, False, True, False, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_vector_of_the_specification(dtype):
    x = group(VECTOR, NVFP4, BF16).to(dtype)
    codes, scales = quantise(x, NVFP4)
    assert e4m3.decode(scales, FP32).tolist() == [[0.8125]]
    assert e2m1.unpack(codes)[0, :8].tolist() == [0, 8, 1, 2, 13, 6, 0, 7]
    assert codes[0, :4].tolist() == [0x80, 0x21, 0x6D, 0x70]
    values = dequantise(codes, scales, NVFP4, dtype)[0, :8].tolist()
    assert values == [0, 0, 0.40625, 0.8125, -2.4375, 3.25, 0, 4.875]


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_nvfp4_multiplies_by_the_reciprocal_where_division_ties(dtype):
    x = group([1.875 * 6, 2.34375, -4.6875, 9.375], NVFP4, dtype)
    codes, scales = quantise(x, NVFP4)
    assert e4m3.decode(scales, FP32).tolist() == [[1.875]]
    assert e2m1.decode(e2m1.unpack(codes), FP32)[0, :4].tolist() == [6, 1.5, -3, 6]
    by_division = e2m1.encode(x[0, 1:4].float() / 1.875)
    assert e2m1.decode(by_division, FP32).tolist() == [1, -2, 4]


def test_nvfp4_in_float64_decides_those_ties_as_division_does():
    x = group([1.875 * 6, 2.34375, -4.6875, 9.375], NVFP4, FP64)
    assert (round_trip(x, NVFP4)[0, :4] / 1.875).tolist() == [6, 1, -2, 4]


def test_reciprocal_and_division_differ_at_the_three_documented_ties_only(every_bf16):
    x = every_bf16[every_bf16.isfinite() & (every_bf16 > 0)].float()
    differing = set()
    for code in range(1, 127):
        scale = torch.tensor([code], dtype=torch.uint8)
        sf = e4m3.decode(scale, FP32)
        near = x[(x > sf / 8) & (x < sf * 8)]
        product = e2m1.encode(near * e4m3.decode_reciprocal(scale, FP32))
        quotient = e2m1.encode(near / sf)
        different = product != quotient
        for value, p, q in zip(
            near[different], product[different], quotient[different], strict=True
        ):
            significand = math.frexp(float(sf))[0] * 2
            differing.add((significand, float(value / sf), int(p), int(q)))
    assert differing == {(1.875, 1.25, 3, 2), (1.875, 2.5, 5, 4), (1.875, 5.0, 7, 6)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("scheme", "largest", "floor"), [(FP8, 448, 1e-4), (MXFP4, 6, 6 * 2.0**-126)]
)
def test_the_power_of_two_scale_is_the_exact_ceiling_for_every_bfloat16_maximum(
    every_bf16, dtype, scheme, largest, floor
):
    x = positive_amax(every_bf16, scheme)
    scales = quantise(x.to(dtype), scheme).scales[:, 0]
    exponent = scales.long().numpy() - 127
    amax = np.maximum(x[:, 3].double().abs().numpy(), floor)
    assert (amax <= np.ldexp(float(largest), exponent)).all()
    assert (amax > np.ldexp(float(largest), exponent - 1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_e4m3_scale_is_the_nearest_for_every_bfloat16_maximum(every_bf16, nearest, dtype):
    x = positive_amax(every_bf16, NVFP4)
    scales = quantise(x.to(dtype), NVFP4).scales[:, 0]
    amax = np.maximum(x[:, 3].float().abs().numpy(), np.float32(6 * 2.0**-9))
    product = np.minimum(amax * (np.float32(1) / np.float32(6)), np.float32(448))
    assert product.dtype == np.float32
    assert torch.equal(scales, nearest(torch.from_numpy(product), "e4m3"))
    quotient = np.minimum(amax.astype(np.float64) / 6, 448)
    assert torch.equal(scales, nearest(torch.from_numpy(quotient), "e4m3"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "element"), [(FP8, "e4m3"), (MXFP4, "e2m1")])
def test_elements_are_the_nearest_codes_of_the_exact_quotient(nearest, dtype, scheme, element):
    x = spread_rows(dtype)
    scales = quantise(x, scheme).scales
    exponents = (scales.long() - 127).repeat_interleave(32, dim=-1)
    quotient = torch.ldexp(x.double(), -exponents).flatten()
    assert torch.equal(codes_of(x, scheme).flatten(), nearest(quotient, element))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_elements_are_the_nearest_codes_of_the_product_with_the_reciprocal(nearest, dtype):
    x = spread_rows(dtype)
    compute = np.float64 if dtype == FP64 else np.float32
    scale = e4m3.decode(quantise(x, NVFP4).scales, FP64).numpy().astype(compute)
    product = x.to(FP64).numpy().astype(compute) * (1 / scale).repeat(16, axis=-1)
    assert product.dtype == compute
    expected = nearest(torch.from_numpy(product).flatten(), "e2m1")
    assert torch.equal(codes_of(x, NVFP4).flatten(), expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_float64_within_1e_12_of_a_tie_is_not_rounded_to_it(scheme):
    largest, tie, below, above = {
        FP8: (448.0, 1.0625, 1.0, 1.125),
        MXFP4: (6.0, 1.25, 1.0, 1.5),
        NVFP4: (6.0, 1.25, 1.0, 1.5),
    }[scheme]
    x = group([largest, tie - 1e-12, tie, tie + 1e-12, -tie - 1e-12], scheme, FP64)
    assert round_trip(x, scheme)[0, :5].tolist() == [largest, below, below, above, -above]


@pytest.mark.parametrize(("scheme", "largest"), [(FP8, 448.0), (MXFP4, 6.0)])
def test_a_float64_maximum_1e_12_above_the_range_of_a_scale_takes_the_next(scheme, largest):
    scales = [quantise(group([largest + d], scheme, FP64), scheme).scales for d in (0, 1e-12)]
    assert [int(s) for s in scales] == [127, 128]


def test_a_float64_maximum_1e_12_beside_a_tie_of_the_e4m3_scale_is_not_rounded_to_it():
    maxima = [6 * 1.0625 + d for d in (-1e-12, 1e-12)]
    scales = [quantise(group([amax], NVFP4, FP64), NVFP4).scales for amax in maxima]
    assert [float(e4m3.decode(s, FP64)) for s in scales] == [1.0, 1.125]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_round_trip_equals_decoding_the_bytes(dtype, scheme):
    x = spread_rows(dtype)
    values = round_trip(x, scheme)
    assert values.dtype == dtype
    assert torch.equal(values, dequantise(*quantise(x, scheme), scheme, dtype))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_decoded_values_are_exact_in_bfloat16(scheme):
    codes, scales = quantise(spread_rows(FP32), scheme)
    exact = dequantise(codes, scales, scheme, FP64)
    for dtype in (BF16, FP32):
        assert torch.equal(dequantise(codes, scales, scheme, dtype).double(), exact)


@pytest.mark.parametrize("scheme", [FP8, MXFP4])
def test_quantising_decoded_values_again_does_not_change_them(scheme):
    once = round_trip(spread_rows(BF16), scheme)
    assert torch.equal(round_trip(once, scheme), once)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bfloat16_float32_and_their_float32_copy_give_the_same_bytes(scheme):
    x = spread_rows(BF16)
    for a, b in zip(quantise(x, scheme), quantise(x.float(), scheme), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_leading_dimensions_strides_and_empty_batches(scheme):
    x = spread_rows(BF16, rows=6, width=96)
    codes, scales = quantise(x, scheme)
    assert codes.dtype == scales.dtype == torch.uint8
    assert codes.shape == (6, 96 // scheme.codes_per_byte)
    assert scales.shape == (6, 96 // scheme.group_size)
    strided = torch.stack((x, x), dim=-1)[..., 0].reshape(2, 3, 96)
    assert torch.equal(quantise(strided, scheme).codes, codes.reshape(2, 3, -1))
    assert round_trip(x[:0], scheme).shape == (0, 96)
    assert round_trip(x[0], scheme).shape == (96,)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_input_is_left_as_it_was(scheme):
    x = spread_rows(FP32)
    before = x.clone()
    quantise(x, scheme)
    round_trip(x, scheme)
    assert torch.equal(x, before)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_tables_follow_the_device_of_the_input(scheme):
    x = torch.empty(4, 64, dtype=BF16, device="meta")
    codes, scales = quantise(x, scheme)
    values = dequantise(codes, scales, scheme, BF16)
    assert {codes.device.type, scales.device.type, values.device.type} == {"meta"}
    assert values.shape == round_trip(x, scheme).shape == (4, 64)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_width_with_a_partial_group_is_an_error(scheme):
    with pytest.raises(UsageError, match=f"24 channels to {scheme.value}.*{scheme.group_size}"):
        quantise(torch.zeros(2, 24), scheme)


def test_scales_of_another_shape_are_an_error():
    codes, scales = quantise(torch.ones(2, 64), FP8)
    with pytest.raises(UsageError, match=r"\(2, 64\) hold 64 channels.*\(2, 1\)"):
        dequantise(codes, scales[:, :1], FP8, FP32)


def test_another_dtype_is_an_error():
    with pytest.raises(UsageError, match=r"torch.float16"):
        quantise(torch.zeros(1, 32, dtype=torch.float16), FP8)


def test_schemes_are_found_by_their_published_names():
    assert [Scheme(name) for name in ("fp8-ue8m0-32", "fp4-ue8m0-32", "fp4-e4m3-16")] == SCHEMES
