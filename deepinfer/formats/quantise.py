"""Block quantisation: groups of consecutive channels that share one scale byte.

Three schemes exist (model specification, sections 4.9 and 5.2 to 5.4). They differ in the element
type, the scale type, the group size and the floor under the group maximum:

| scheme      | element | group | floor of amax | scale                          |
|-------------|---------|-------|---------------|--------------------------------|
| FP8_BLOCK32 | e4m3    | 32    | 1e-4          | 2^ceil(log2(amax * (1/448)))   |
| MXFP4       | e2m1    | 32    | 6 * 2^-126    | 2^ceil(log2(amax * (1/6)))     |
| NVFP4       | e2m1    | 16    | 6 * 2^-9      | e4m3(amax * (1/6)), at most 448 |

Elements are the values times the reciprocal of the decoded scale, rounded to nearest, ties to even.
All arithmetic is float32 for bfloat16 and float32 input and float64 for float64 input, constants
and reciprocals included. For NVFP4 the rounded reciprocal decides exact ties at 1.25, 2.5 and 5
under scales 1.875 * 2^k: they go up in float32 and, as under division, to even in float64.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.errors import UsageError
from deepinfer.formats import e2m1, e4m3, tables, ue8m0


class Scheme(StrEnum):
    """A block format: element type, scale type, channels per scale."""

    FP8_BLOCK32 = "fp8-ue8m0-32"
    MXFP4 = "fp4-ue8m0-32"
    NVFP4 = "fp4-e4m3-16"

    @property
    def group_size(self) -> int:
        """Consecutive channels that share one scale byte."""
        return 16 if self is Scheme.NVFP4 else 32

    @property
    def codes_per_byte(self) -> int:
        """1 for e4m3 elements, 2 for packed e2m1 elements."""
        return 1 if self is Scheme.FP8_BLOCK32 else 2


class Quantised(NamedTuple):
    """Stored bytes of a block-quantised tensor [..., n]."""

    codes: Tensor  # uint8 [..., n], or [..., n / 2] for the packed 4-bit schemes
    scales: Tensor  # uint8 [..., n / group_size]


_AMAX_FLOOR = {
    Scheme.FP8_BLOCK32: 1e-4,
    Scheme.MXFP4: e2m1.MAX * 2.0**-126,
    Scheme.NVFP4: e2m1.MAX * 2.0**-9,
}


def quantise(x: Tensor, scheme: Scheme) -> Quantised:
    """Bytes of `x` [..., n] (bfloat16, float32 or float64; n a multiple of the group size).

    A group that holds a NaN gets a NaN scale (255, or 0x7F in NVFP4) and the code of a positive
    NaN or 6 (0x7F, or 7) everywhere, so that all of it decodes to NaN; other groups are untouched.
    An infinity, or a float64 group maximum above the range of the scale, saturates: the largest
    scale (byte 254, 2^127; 448 in NVFP4) and the largest code of its sign. Such a code decodes to
    infinity where 448 * 2^127 or 6 * 2^127 exceeds the type, and to 2688 in NVFP4, and the finite
    values beside it mostly to zero.

    Raises `UsageError` for another dtype or a width that is no multiple of the group size.
    """
    codes, scales = _codes_and_scales(x, scheme)
    return Quantised(e2m1.pack(codes) if scheme.codes_per_byte == 2 else codes, scales)


def dequantise(codes: Tensor, scales: Tensor, scheme: Scheme, dtype: torch.dtype) -> Tensor:
    """Values [..., n] in `dtype` (bfloat16, float32 or float64) of the bytes of `quantise`.

    Exact in each of them while the product of code and scale stays in the type's range.
    Raises `UsageError` for bytes that are not uint8 and for scales of another shape than codes ask.
    """
    width = codes.shape[-1] * scheme.codes_per_byte
    expected = (*codes.shape[:-1], width // scheme.group_size)
    if width % scheme.group_size or scales.shape != expected:
        raise UsageError(
            f"{scheme.value} codes of shape {tuple(codes.shape)} hold {width} channels and scales "
            f"have shape {tuple(scales.shape)}; there must be one scale per "
            f"{scheme.group_size} channels, all groups whole"
        )
    decode = e2m1.decode_packed if scheme.codes_per_byte == 2 else e4m3.decode
    return _scaled(decode(codes, dtype), scales, scheme)


def round_trip(x: Tensor, scheme: Scheme) -> Tensor:
    """`dequantise(*quantise(x, scheme), scheme, x.dtype)`: what a reader of the bytes sees."""
    codes, scales = _codes_and_scales(x, scheme)
    decode = e2m1.decode if scheme.codes_per_byte == 2 else e4m3.decode
    return _scaled(decode(codes, x.dtype), scales, scheme)


def _codes_and_scales(x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Unpacked codes [..., n] and scales [..., n / group_size]."""
    if x.shape[-1] % scheme.group_size:
        raise UsageError(
            f"cannot quantise {x.shape[-1]} channels to {scheme.value}: the width must be a "
            f"multiple of its group size {scheme.group_size}"
        )
    dtype = tables.compute_dtype(x)
    groups = _grouped(x.to(dtype), scheme)
    amax = groups.abs().amax(-1).clamp_(min=_AMAX_FLOOR[scheme])
    largest = e4m3.MAX if scheme is Scheme.FP8_BLOCK32 else e2m1.MAX
    target = amax.mul_(1 / largest)
    if scheme is Scheme.NVFP4:
        scales = e4m3.encode(target) & e4m3.NAN  # no sign: that of a NaN maximum means nothing
        reciprocal, nan_scale = e4m3.decode_reciprocal(scales, dtype), e4m3.NAN
    else:
        scales = ue8m0.encode_ceil(target)
        reciprocal, nan_scale = ue8m0.decode_reciprocal(scales, dtype), ue8m0.NAN
    scaled = groups * reciprocal.unsqueeze(-1)
    if scheme is Scheme.FP8_BLOCK32:
        codes, nan_code = e4m3.encode(scaled), e4m3.NAN
    else:
        codes, nan_code = e2m1.encode(scaled), e2m1.NAN_CODE
    # Processors differ in the sign of a NaN that arithmetic made: fix the code of the whole group.
    codes.masked_fill_((scales == nan_scale).unsqueeze(-1), nan_code)
    return codes.flatten(-2), scales


def _scaled(values: Tensor, scales: Tensor, scheme: Scheme) -> Tensor:
    """`values` [..., n], which is overwritten, times the scale of each group."""
    decode = e4m3.decode if scheme is Scheme.NVFP4 else ue8m0.decode
    factors = decode(scales, values.dtype).unsqueeze(-1)
    _grouped(values, scheme).mul_(factors)
    return values


def _grouped(x: Tensor, scheme: Scheme) -> Tensor:
    """`x` [..., n] as [..., groups, group_size]; a view where x is contiguous."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // scheme.group_size, scheme.group_size)
