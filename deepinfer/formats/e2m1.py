"""The 4-bit float e2m1: 1 sign, 2 exponent bits and 1 mantissa bit; two codes to a byte.

Codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign, so code 8 is -0. There is no
infinity and no NaN. Source: model specification, notation and sections 2.3 and 5.1.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from deepinfer.errors import UsageError
from deepinfer.formats import tables

MAX = 6.0
NAN_CODE = 7  # the format has no NaN; what `encode` writes for one
_MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_VALUES = [*_MAGNITUDES, *(-v for v in _MAGNITUDES)]


def encode(x: Tensor) -> Tensor:
    """Codes 0..15 of the nearest e2m1 values: uint8 of x's shape, one code per element.

    Round to nearest, ties to the code whose mantissa bit is 0, in bfloat16, float32 or float64
    without an intermediate rounding. Magnitudes above 6 and infinities saturate to 6. The sign is
    kept, that of -0 too. The format has no NaN: NaN becomes 6 (code 7) with its sign, and the
    block formats mark it in the scale instead.
    """
    x = x.to(tables.compute_dtype(x))
    return tables.encode(x, _code_table(x.dtype, x.device))


def decode(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of uint8 `codes` 0..15, one per element, exact in every dtype; same shape."""
    return tables.decode(codes, _value_table(dtype, codes.device))


def pack(codes: Tensor) -> Tensor:
    """Two codes per byte, even channel in the low nibble: uint8 [..., n] -> [..., n / 2]."""
    if codes.shape[-1] % 2:
        raise UsageError(
            f"cannot pack {codes.shape[-1]} e2m1 codes; two share a byte: the count must be even"
        )
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """The codes of packed bytes: uint8 [..., n / 2] -> [..., n]."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-1).flatten(-2)


def decode_packed(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of packed bytes, `decode(unpack(packed), dtype)` in one look-up: [..., n]."""
    return tables.decode(packed, _pair_table(dtype, packed.device))


@cache
def _code_table(dtype: torch.dtype, device: torch.device) -> tables.CodeTable:
    codes = tables.nearest_codes(tables.index_values(dtype), _MAGNITUDES, NAN_CODE)
    return tables.code_table(codes, dtype, device)


@cache
def _value_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    tables.check_value_dtype(dtype, "the result")
    return torch.tensor(_VALUES, dtype=dtype).to(device)


@cache
def _pair_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    tables.check_value_dtype(dtype, "the result")
    pairs = [(_VALUES[byte & 0x0F], _VALUES[byte >> 4]) for byte in range(256)]
    return torch.tensor(pairs, dtype=dtype).to(device)
