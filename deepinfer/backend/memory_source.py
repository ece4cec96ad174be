"""`MemorySource`: a `Source` over a tensor in memory, for tests and kernel authors."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend.values import Source

_NAMES = {
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int8: "I8",
}


class MemorySource(Source):
    """A published tensor that is already in memory.

    values: bf16, float32, float8_e4m3fn, float8_e8m0fnu or int8; the byte formats are handed out
    as uint8. A uint8 tensor needs `dtype`, the safetensors name of what it holds.
    """

    def __init__(self, values: Tensor, name: str = "memory", dtype: str | None = None) -> None:
        self.dtype = dtype or _NAMES[values.dtype]
        byte_format = self.dtype in ("F8_E4M3", "F8_E8M0", "I8")
        self._values = values.contiguous()
        if byte_format and self._values.dtype != torch.uint8:
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
        """The slice [start, stop) along the first dimension."""
        return MemorySource(self._values[start:stop], self.name, self.dtype)
