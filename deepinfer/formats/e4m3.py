"""The 8-bit float e4m3 (float8_e4m3fn): 1 sign, 4 exponent and 3 mantissa bits, no infinity.

Largest magnitude 448 (code 0x7E), smallest normal 2^-6, smallest subnormal 2^-9 (code 0x01);
0x7F and 0xFF are NaN. Source: model specification, notation and section 5.1.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from deepinfer.formats import tables

MAX = 448.0
NAN = 0x7F
_MAGNITUDES = [
    (m / 8) * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
    for e in range(16)
    for m in range(8)
][:NAN]


def encode(x: Tensor) -> Tensor:
    """Codes of the nearest e4m3 values: uint8 of x's shape.

    Round to nearest, ties to the even code, in bfloat16, float32 or float64 without an
    intermediate rounding. Magnitudes above 448 and infinities saturate to 448. The sign is kept,
    that of -0 and NaN too: NaN is 0x7F or 0xFF.
    """
    x = x.to(tables.compute_dtype(x))
    return tables.encode(x, _code_table(x.dtype, x.device))


def decode(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of uint8 `codes`, exact in bfloat16, float32 and float64; same shape."""
    return tables.decode(codes, _value_table(dtype, codes.device))


def decode_reciprocal(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / value of uint8 `codes`, rounded once to `dtype` as IEEE division rounds; same shape.

    Read from a table made on the host, so that no device's approximate reciprocal changes a code
    of the format that multiplies by it (model specification, section 5.3).
    """
    return tables.decode(codes, _reciprocal_table(dtype, codes.device))


@cache
def _code_table(dtype: torch.dtype, device: torch.device) -> tables.CodeTable:
    codes = tables.nearest_codes(tables.index_values(dtype), _MAGNITUDES, NAN)
    return tables.code_table(codes, dtype, device)


@cache
def _value_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    tables.check_value_dtype(dtype, "the result")
    positive = [*_MAGNITUDES, float("nan")]
    return torch.tensor(positive + [-v for v in positive], dtype=dtype).to(device)


@cache
def _reciprocal_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    return _value_table(dtype, torch.device("cpu")).reciprocal().to(device)
