"""One open shard file: a shared read-only mapping and positioned reads."""

from __future__ import annotations

import mmap
import os
import threading
import warnings
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.errors import CheckpointError, TruncatedShardError

READ_PIECE = 16 * 1024 * 1024  # bytes asked of the file system at once


class Shard:
    """A shard whose header was checked. The file is opened at first use, mapped once, read-only.

    path: the file; file_bytes: the size that its header was checked against. Tensors that were
    mapped keep the mapping alive after `close`.
    """

    def __init__(self, path: Path, file_bytes: int) -> None:
        self.path = path
        self.file_bytes = file_bytes
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._mapping: mmap.mmap | None = None
        self._bytes: Tensor | None = None
        self._closed = False

    def mapped(self) -> Tensor:
        """The whole file, uint8 [file_bytes]; a view of the page cache, never to be written to."""
        with self._lock:
            if self._bytes is None:
                self._mapping = mmap.mmap(self._open(), self.file_bytes, access=mmap.ACCESS_READ)
                with warnings.catch_warnings():
                    # torch warns once that the buffer is read-only, which is the point here.
                    warnings.filterwarnings("ignore", ".*not writable", UserWarning)
                    self._bytes = torch.frombuffer(self._mapping, dtype=torch.uint8)
            return self._bytes

    def expect_random_access(self, offset: int, nbytes: int) -> None:
        """Tell the system not to read ahead in a byte range: single rows of it will be gathered."""
        self.mapped()
        assert self._mapping is not None
        page = mmap.PAGESIZE
        start = -(-offset // page) * page
        stop = (offset + nbytes) // page * page
        if stop > start and hasattr(mmap, "MADV_RANDOM"):
            self._mapping.madvise(mmap.MADV_RANDOM, start, stop - start)

    def read_into(self, buffer: Tensor, offset: int) -> None:
        """Fill a contiguous uint8 tensor with the bytes from `offset` on, piece by piece.

        Errors: TruncatedShardError if the file has become shorter, CheckpointError if it cannot
        be read.
        """
        with self._lock:
            descriptor = self._open()
        view = buffer.numpy().data
        done = 0
        try:
            while done < len(view):
                count = os.preadv(descriptor, [view[done : done + READ_PIECE]], offset + done)
                if count == 0:
                    raise TruncatedShardError(
                        f"{self.path}: expected {self.file_bytes:,} bytes, found "
                        f"{offset + done:,}; the file changed while it was open"
                    )
                done += count
        except OSError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Close the file. Mapped tensors stay valid; nothing more can be read or mapped."""
        with self._lock:
            self._closed = True
            self._bytes = self._mapping = None
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path}: cannot be read: {error.strerror or error}")

    def _open(self) -> int:
        if self._closed:
            raise CheckpointError(f"{self.path}: the checkpoint is closed; open it again")
        if self._descriptor is None:
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise self._unreadable(error) from error
            found = os.fstat(descriptor).st_size
            if found != self.file_bytes:
                os.close(descriptor)
                raise TruncatedShardError(
                    f"{self.path}: expected {self.file_bytes:,} bytes, found {found:,}; "
                    "the file changed after its header was checked"
                )
            self._descriptor = descriptor
        return self._descriptor
