"""Conversions between floating-point values and small codes, by table look-up.

Decoding reads a table with one entry per byte. Encoding reads a table whose index is the top of
the value's own bit pattern: sign, exponent and the first five mantissa bits, the last of which is
set when any bit below is set ("round to odd"). Every value of an 8- or 4-bit format and every
midpoint between two of them has at most four mantissa bits, so the index decides the code exactly,
ties included, and no arithmetic that could round takes part. The same holds in float64, where the
index is only longer.

Tables are built once on the host and kept per dtype and device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.errors import UsageError
from deepinfer.formats.dtypes import COMPUTE_DTYPES

_KEPT_MANTISSA_BITS = 5


class _Pattern(NamedTuple):
    """How a float type's bit pattern becomes a table index."""

    bits: torch.dtype  # integer type of the same size
    shift: int  # mantissa bits folded into the last kept one
    size: int  # number of indices


class CodeTable(NamedTuple):
    """A code for every index, and what `encode` needs to form indices, all on one device.

    The three numbers are tensors because PyTorch takes longer to wrap a Python number than to
    convert a short row.
    """

    codes: Tensor  # uint8 [size]
    folded_mask: Tensor  # the mantissa bits below the index
    shift: Tensor
    index_mask: Tensor


_PATTERNS = {
    torch.float32: _Pattern(torch.int32, 23 - _KEPT_MANTISSA_BITS, 1 << 14),
    torch.float64: _Pattern(torch.int64, 52 - _KEPT_MANTISSA_BITS, 1 << 17),
}


def check_value_dtype(dtype: torch.dtype, what: str) -> None:
    """Raise `UsageError` unless `dtype` is bfloat16, float32 or float64."""
    if dtype not in COMPUTE_DTYPES.values():
        raise UsageError(
            f"{what} has dtype {dtype}; block formats convert bfloat16, float32 and float64: "
            "convert the tensor first"
        )


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type in which `x` is scaled and rounded: float64 for float64, else float32."""
    if x.dtype == torch.float64:
        return torch.float64
    check_value_dtype(x.dtype, "the tensor to encode")
    return torch.float32


def index_values(dtype: torch.dtype) -> Tensor:
    """One value, float64, for every index that `encode` can form from `dtype`, by index.

    An index with its last bit set stands for all values strictly between its two neighbours.
    """
    pattern = _PATTERNS[dtype]
    index = torch.arange(pattern.size)
    signed = torch.where(index < pattern.size // 2, index, index - pattern.size)
    return (signed << pattern.shift).to(pattern.bits).view(dtype).double()


def nearest_codes(values: Tensor, magnitudes: list[float], nan_code: int) -> Tensor:
    """Codes of the nearest magnitudes to float64 `values`: the rule that tables are made by.

    `magnitudes`: the format's values by ascending code, starting with 0; their count, rounded up
    to a power of two, is the sign bit. A tie goes to the even code, a larger magnitude (infinity
    too) to the last code, NaN to `nan_code`; each keeps its sign.
    """
    grid = torch.tensor(magnitudes, dtype=torch.float64)
    magnitude = values.abs().nan_to_num(0.0).clamp(max=magnitudes[-1])
    lower = torch.searchsorted(grid, magnitude, right=True) - 1
    upper = (lower + 1).clamp(max=len(magnitudes) - 1)
    excess = 2 * magnitude - grid[lower] - grid[upper]
    codes = torch.where((excess > 0) | ((excess == 0) & (upper % 2 == 0)), upper, lower)
    codes = torch.where(values.isnan(), nan_code, codes)
    sign_bit = 1 << (len(magnitudes) - 1).bit_length()
    return codes + sign_bit * values.signbit()


def code_table(codes: Tensor, dtype: torch.dtype, device: torch.device) -> CodeTable:
    """The table on `device` that encodes `dtype`; `codes` are those of `index_values(dtype)`."""
    pattern = _PATTERNS[dtype]
    numbers = ((1 << pattern.shift) - 1, pattern.shift, pattern.size - 1)
    folded, shift, index = torch.tensor(numbers, dtype=pattern.bits).to(device).unbind()
    return CodeTable(codes.to(torch.uint8).to(device), folded, shift, index)


def encode(x: Tensor, table: CodeTable) -> Tensor:
    """uint8 codes of float32 or float64 `x` by the table of its dtype and device; x's shape."""
    bits = x.view(table.folded_mask.dtype)
    index = bits & table.folded_mask
    index += table.folded_mask  # carries into the last kept bit unless all folded bits are 0
    index |= bits
    index >>= table.shift
    index &= table.index_mask
    return table.codes.index_select(0, index.flatten()).view(x.shape)


def decode(codes: Tensor, table: Tensor) -> Tensor:
    """`table[codes]` for uint8 `codes` of any shape; `table` is [256] or [256, k] on its device.

    A table with k columns yields k consecutive values per code: the last dimension grows k-fold.
    """
    if codes.dtype != torch.uint8:
        raise UsageError(
            f"codes have dtype {codes.dtype}; stored bytes are torch.uint8: view them as uint8"
        )
    values = table.index_select(0, codes.flatten().int())
    if table.dim() == 1:
        return values.view(codes.shape)
    return values.view(*codes.shape[:-1], codes.shape[-1] * table.shape[1])
