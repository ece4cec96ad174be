"""The scale byte ue8m0 (float8_e8m0fnu): an unsigned exponent b of value 2^(b - 127).

Byte 255 is NaN. Byte 0 is 2^-127, a subnormal of float32 and bfloat16. Source: model
specification, notation and sections 2.3, 5.2 and 5.4.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from deepinfer.formats import tables

BIAS = 127
NAN = 255


def decode(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(b - 127) for uint8 `scales`, exact in bfloat16, float32 and float64; same shape."""
    return tables.decode(scales, _value_table(dtype, scales.device))


def decode_reciprocal(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(127 - b) for uint8 `scales` 0..254, NaN for 255; exact, same shape.

    2^127, the reciprocal of byte 0, is the largest power of two that float32 holds.
    """
    return decode((BIAS * 2) - scales, dtype)  # 254 - 255 wraps to 255, which is NaN again


def ceil_exponent(x: Tensor) -> Tensor:
    """ceil(log2(x)), exact for every positive value, subnormals included: int32 of x's shape.

    Read from the value's own exponent and mantissa, never from a rounded logarithm. Infinity
    gives the exponent of the largest finite value (128 in float32, 1024 in float64). The result
    for zero, negative values and NaN is not specified.
    """
    x = x.to(tables.compute_dtype(x))
    fraction, exponent = torch.frexp(x.clamp(max=torch.finfo(x.dtype).max))
    return exponent - (fraction == 0.5).int()  # x = fraction * 2^exponent, 0.5 <= fraction < 1


def encode_ceil(x: Tensor) -> Tensor:
    """Byte of the smallest power of two not below positive `x`: `ceil_exponent(x) + 127`, uint8.

    Values above 2^127, infinity included, give byte 254, values below 2^-127 byte 0, NaN byte 255.
    """
    x = x.to(tables.compute_dtype(x))
    return tables.encode(x, _code_table(x.dtype, x.device))


@cache
def _code_table(dtype: torch.dtype, device: torch.device) -> tables.CodeTable:
    values = tables.index_values(dtype).abs()
    scales = (ceil_exponent(values).clamp(-BIAS, BIAS) + BIAS).masked_fill(values.isnan(), NAN)
    return tables.code_table(scales, dtype, device)


@cache
def _value_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    tables.check_value_dtype(dtype, "the result")
    values = [2.0 ** (byte - BIAS) for byte in range(NAN)] + [float("nan")]
    return torch.tensor(values, dtype=torch.float64).to(dtype).to(device)
