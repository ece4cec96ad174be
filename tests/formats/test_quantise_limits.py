"""Block schemes at their limits: zeros, floors, saturation, NaN and infinity."""

from __future__ import annotations

import math

import pytest
import torch

from deepinfer.formats import Scheme, dequantise, e2m1, e4m3, quantise, round_trip, ue8m0

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
DTYPES = [BF16, FP32, FP64]
FP8, MXFP4, NVFP4 = Scheme.FP8_BLOCK32, Scheme.MXFP4, Scheme.NVFP4
NAN, INF = math.nan, math.inf


def group(values: list[float], scheme: Scheme, dtype: torch.dtype) -> torch.Tensor:
    """One group [1, group_size]: the values, then zeros."""
    x = torch.zeros(1, scheme.group_size, dtype=dtype)
    x[0, : len(values)] = torch.tensor(values, dtype=dtype)
    return x


def codes_of(x: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    codes = quantise(x, scheme).codes
    return codes if scheme is FP8 else e2m1.unpack(codes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "least_scale"), [(FP8, 105), (MXFP4, 1), (NVFP4, 1)])
def test_a_group_of_zeros_has_the_least_scale_and_keeps_its_signs(dtype, scheme, least_scale):
    x = group([0.0, -0.0], scheme, dtype)
    assert quantise(x, scheme).scales.tolist() == [[least_scale]]
    assert codes_of(x, scheme)[0, :3].tolist() == [0, 0x80 if scheme is FP8 else 0x8, 0]
    assert round_trip(x, scheme)[0, :3].signbit().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("scheme", "floor"), [(FP8, 1e-4), (MXFP4, 6 * 2.0**-126), (NVFP4, 6 / 512)]
)
def test_maxima_at_and_below_the_floor_share_one_scale(scheme, floor):
    maxima = torch.tensor([floor, floor / 2, floor / 1000], dtype=FP32)
    x = torch.zeros(3, scheme.group_size)
    x[:, 0] = maxima
    assert len(set(quantise(x, scheme).scales.flatten().tolist())) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_nvfp4_scale_rounded_down_saturates_its_largest_element(dtype):
    x = group([6.36], NVFP4, dtype)  # amax / 6 = 1.06 rounds to 1
    assert e4m3.decode(quantise(x, NVFP4).scales, FP32).tolist() == [[1.0]]
    assert round_trip(x, NVFP4)[0, 0] == 6


@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_saturates_above_2688(dtype):
    x = group([1e5, -1e5, 2000.0], NVFP4, dtype)
    assert quantise(x, NVFP4).scales.tolist() == [[0x7E]]
    assert round_trip(x, NVFP4)[0, :3].tolist() == [2688, -2688, 1792]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("scheme", "scale"), [(FP8, 255), (MXFP4, 255), (NVFP4, 0x7F)])
def test_a_nan_marks_its_whole_group_and_no_other(dtype, sign, scheme, scale):
    x = torch.ones(1, 3 * scheme.group_size, dtype=dtype)
    clean = quantise(x, scheme)
    x[0, scheme.group_size + 5] = math.copysign(NAN, sign)
    x[0, scheme.group_size + 6] = INF
    codes, scales = quantise(x, scheme)
    assert scales.tolist() == [[clean.scales[0, 0], scale, clean.scales[0, 2]]]
    per_group = codes.reshape(3, -1)
    assert set(per_group[1].tolist()) == {0x7F if scheme is FP8 else 0x77}
    assert torch.equal(per_group[[0, 2]], clean.codes.reshape(3, -1)[[0, 2]])
    for values in (dequantise(codes, scales, scheme, dtype), round_trip(x, scheme)):
        assert values.reshape(3, -1).isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("scheme", "scale", "code"), [(FP8, 254, 126), (MXFP4, 254, 7), (NVFP4, 126, 7)]
)
def test_infinity_takes_the_largest_scale_and_code(dtype, scheme, scale, code):
    x = group([INF, -INF, 1.0], scheme, dtype)
    assert quantise(x, scheme).scales.tolist() == [[scale]]
    sign_bit = 0x80 if scheme is FP8 else 0x8
    assert codes_of(x, scheme)[0, :3].tolist() == [code, code | sign_bit, 0]


def test_infinity_decodes_to_infinity_or_to_the_largest_value():
    for dtype in (BF16, FP32):
        for scheme in (FP8, MXFP4):
            x = group([INF, -INF], scheme, dtype)
            assert round_trip(x, scheme)[0, :3].tolist() == [INF, -INF, 0]
    assert round_trip(group([INF], FP8, FP64), FP8)[0, 0] == 448 * 2.0**127
    for dtype in DTYPES:
        assert round_trip(group([INF, -INF], NVFP4, dtype), NVFP4)[0, :2].tolist() == [2688, -2688]


def test_a_float64_maximum_beyond_the_largest_scale_saturates():
    x = group([1e300, -1e300, 2.0**130], MXFP4, FP64)
    assert quantise(x, MXFP4).scales.tolist() == [[254]]
    assert round_trip(x, MXFP4)[0, :3].tolist() == [6 * 2.0**127, -6 * 2.0**127, 6 * 2.0**127]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "scale"), [(FP8, 255), (MXFP4, 255), (NVFP4, 0x7F)])
def test_the_sign_that_a_processor_gives_to_nan_does_not_reach_the_bytes(
    monkeypatch, dtype, scheme, scale
):
    def with_negative_nan(function):
        def changed(*args, **kwargs):
            result = function(*args, **kwargs)
            return torch.where(result.isnan(), torch.copysign(result, -result.new_ones(1)), result)

        return changed

    for owner, name in [
        (torch.Tensor, "amax"),
        (e4m3, "decode_reciprocal"),
        (ue8m0, "decode_reciprocal"),
    ]:
        monkeypatch.setattr(owner, name, with_negative_nan(getattr(owner, name)))
    x = group([1.0, NAN], scheme, dtype)
    assert quantise(x, scheme).scales.tolist() == [[scale]]
    assert set(codes_of(x, scheme)[0].tolist()) == {0x7F if scheme is FP8 else 7}
