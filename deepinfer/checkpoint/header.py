"""The header of one safetensors shard, read strictly.

A shard is an 8-byte little-endian length, that many bytes of JSON, and the data. The JSON maps
each tensor to dtype, shape and two offsets into the data; the data must be covered exactly once
and end where the file ends. Nothing that a header says is believed before it is checked.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deepinfer.errors import (
    CheckpointError,
    CheckpointIndexError,
    MissingShardError,
    TensorMismatchError,
    TruncatedShardError,
)
from deepinfer.strict_json import parse_object

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself
MAX_DIMENSIONS = 8
MAX_SIZE = 2**63 - 1

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class StoredTensor(NamedTuple):
    """Where one tensor lies: `offset` counts from the start of the file, sizes are in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class ShardHeader:
    """What a shard holds: its tensors in file order and the exact size of the file in bytes."""

    path: Path
    file_bytes: int
    tensors: tuple[StoredTensor, ...]


def read_header(path: Path) -> ShardHeader:
    """Read and check the header of `path`; no byte of tensor data is read.

    Errors: MissingShardError (no such file), TruncatedShardError (the file is shorter or longer
    than the header says), CheckpointIndexError (a broken header, a hole, an overlap, a size that
    does not follow from shape and dtype), TensorMismatchError (an unknown dtype).
    """
    try:
        with open(path, "rb", buffering=0) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = _header_length(path, file.read(LENGTH_BYTES), file_bytes)
            data = bytearray()
            while len(data) < length and (piece := file.read(length - len(data))):
                data += piece
    except FileNotFoundError:
        raise MissingShardError(
            f"{path}: no such file (a symbolic link may point nowhere); fetch the shard again"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) < length:
        raise _truncated(path, LENGTH_BYTES + length, LENGTH_BYTES + len(data))
    start = LENGTH_BYTES + length
    tensors = _tensors(path, bytes(data), start)
    end = max((tensor.offset + tensor.nbytes for tensor in tensors), default=start)
    if file_bytes != end:
        raise _truncated(path, end, file_bytes)
    return ShardHeader(path, file_bytes, tensors)


def _truncated(path: Path, expected: int, found: int) -> TruncatedShardError:
    word = "short" if found < expected else "long"
    return TruncatedShardError(
        f"{path}: expected {expected:,} bytes by its header, found {found:,} "
        f"({abs(expected - found):,} too {word}); fetch the shard again"
    )


def _broken(path: Path, reason: str) -> CheckpointIndexError:
    return CheckpointIndexError(
        f"{path}: broken safetensors header: {reason}; fetch the shard again"
    )


def _header_length(path: Path, prefix: bytes, file_bytes: int) -> int:
    if len(prefix) < LENGTH_BYTES:
        raise TruncatedShardError(
            f"{path}: expected at least {LENGTH_BYTES} bytes, found {file_bytes}; "
            "fetch the shard again"
        )
    length = int.from_bytes(prefix, "little")
    if length > file_bytes - LENGTH_BYTES:
        raise TruncatedShardError(
            f"{path}: expected at least {LENGTH_BYTES + length:,} bytes by its header length, "
            f"found {file_bytes:,}; fetch the shard again"
        )
    if length > MAX_HEADER_BYTES:
        raise _broken(path, f"its length {length:,} exceeds {MAX_HEADER_BYTES:,}")
    return length


def _tensors(path: Path, data: bytes, start: int) -> tuple[StoredTensor, ...]:
    try:
        table = parse_object(data)
    except ValueError as error:
        raise _broken(path, str(error)) from None
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise _broken(path, "__metadata__ is not an object")
    tensors = [_tensor(path, name, entry, start) for name, entry in table.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    position = start
    for tensor in tensors:
        if tensor.offset != position:
            kind = (
                "overlaps the tensor before it"
                if tensor.offset < position
                else (f"leaves a hole of {tensor.offset - position:,} bytes before it")
            )
            raise _broken(path, f"{tensor.name} {kind}")
        position += tensor.nbytes
    return tuple(tensors)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE


def _tensor(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    label = name if len(name) <= 200 else name[:200] + "..."
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, f"{label} needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        shown = repr(dtype[:50]) if isinstance(dtype, str) else f"of type {type(dtype).__name__}"
        raise TensorMismatchError(
            f"{path}: {label} has the unknown dtype {shown}; allowed are {', '.join(DTYPE_BYTES)}"
        )
    if not (isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS and all(map(_is_size, shape))):
        raise _broken(path, f"the shape of {label} is not a list of up to {MAX_DIMENSIONS} sizes")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, offsets))):
        raise _broken(path, f"the data_offsets of {label} are not two offsets")
    begin, end = offsets
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != nbytes:
        raise _broken(
            path,
            f"{label} takes {end - begin:,} bytes, but {dtype} {shape} needs {nbytes:,}",
        )
    return StoredTensor(name, sys.intern(dtype), tuple(shape), start + begin, nbytes)
