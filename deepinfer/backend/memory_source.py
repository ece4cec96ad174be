"""`MemorySource`: a `Source` over a tensor in memory, for tests and kernel authors."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend.values import Source
from deepinfer.formats.dtypes import BYTE_DTYPES, PUBLISHED_DTYPES

_NAMES = {dtype: name for name, dtype in PUBLISHED_DTYPES.items()}


class MemorySource(Source):
    """A published tensor that is already in memory.

    values: bf16, float32, float8_e4m3fn, float8_e8m0fnu or int8; the byte formats are handed out
    as uint8. A uint8 tensor needs `dtype`, the safetensors name of what it holds.
    """

    def __init__(self, values: Tensor, name: str = "memory", dtype: str | None = None) -> None:
        self.dtype = dtype or _NAMES.get(values.dtype, "")
        if not _fits(values.dtype, self.dtype):
            raise ValueError(
                f"source {name!r}: values are {values.dtype}, dtype is {dtype!r}; allowed: "
                "bfloat16, float32, float8_e4m3fn, float8_e8m0fnu, int8, or uint8 with one of the "
                f"dtypes {', '.join(BYTE_DTYPES)}"
            )
        self._values = values.contiguous()
        if self.dtype in BYTE_DTYPES:
            self._values = self._values.view(torch.uint8)
        self.name = name
        self.shape = tuple(values.shape)
        self.nbytes = self._values.numel() * self._values.element_size()
        self.file = ""
        self.offset = 0

    def read(self) -> Tensor:
        """A private copy."""
        return self._values.clone()

    def map(self) -> Tensor:
        """The tensor itself."""
        return self._values

    def rows(self, start: int, stop: int) -> MemorySource:
        """The slice [start, stop) along the first dimension; ValueError where it leaves it."""
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(
                f"{self.name}: rows [{start}, {stop}) leave the shape {list(self.shape)}"
            )
        return MemorySource(self._values[start:stop], self.name, self.dtype)


def _fits(stored: torch.dtype, dtype: str) -> bool:
    """Whether values of `stored` are those of the safetensors type, directly or as raw bytes."""
    return _NAMES.get(stored) == dtype or (stored == torch.uint8 and dtype in BYTE_DTYPES)
