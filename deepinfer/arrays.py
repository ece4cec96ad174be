"""Arrays that live on the host: token ids, slots, positions and tables of blocks."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]


def reserved_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Zeros that take memory by the small page, and only where something was written.

    `numpy.zeros` asks for huge pages for a large array: one written byte takes 2 MiB of it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)
