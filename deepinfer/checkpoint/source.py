"""A stored tensor as the rest of the engine sees it: readable, mappable, sliceable by rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.backend.values import Source
from deepinfer.checkpoint.header import DTYPE_BYTES
from deepinfer.checkpoint.shard import Shard
from deepinfer.formats.dtypes import READ_DTYPES


@dataclass(frozen=True)
class FileSource(Source):
    """A `Source` in a shard file. `random_access`: rows will be gathered, so do not read ahead."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    shard: Shard
    random_access: bool = False

    @property
    def file(self) -> str:  # type: ignore[override]
        """Path of the shard."""
        return str(self.shard.path)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Stored bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def aligned(self) -> bool:
        """Whether the bytes can be viewed in place; safetensors promises no alignment."""
        return self.offset % READ_DTYPES[self.dtype].itemsize == 0

    def read(self) -> Tensor:
        """A private copy, shaped `shape`: bf16, float32, or uint8 for the byte formats.

        Errors: TruncatedShardError, CheckpointError.
        """
        buffer = torch.empty(self.nbytes, dtype=torch.uint8)
        self.shard.read_into(buffer, self.offset)
        return buffer.view(READ_DTYPES[self.dtype]).reshape(self.shape)

    def map(self) -> Tensor:
        """A view of the mapped file, dtypes as `read`; a private copy if the bytes are unaligned.

        The view must not be written to: the pages are read-only.
        """
        if not self.aligned:
            return self.read()
        whole = self.shard.mapped()
        if self.random_access:
            self.shard.expect_random_access(self.offset, self.nbytes)
        piece = whole[self.offset : self.offset + self.nbytes]
        return piece.view(READ_DTYPES[self.dtype]).reshape(self.shape)

    def rows(self, start: int, stop: int) -> FileSource:
        """The slice [start, stop) along the first dimension.

        Errors: ValueError if the tensor has no rows or the slice leaves it.
        """
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(
                f"{self.name}: rows [{start}, {stop}) leave the shape {list(self.shape)}"
            )
        row_bytes = math.prod(self.shape[1:]) * DTYPE_BYTES[self.dtype]
        return FileSource(
            self.name,
            self.dtype,
            (stop - start, *self.shape[1:]),
            self.offset + start * row_bytes,
            self.shard,
            self.random_access,
        )
