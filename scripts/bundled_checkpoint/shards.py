"""Writing safetensors shards and their index, byte for byte the same every time.

Written by hand because the published dtypes (E8M0 scales, packed FP4 as I8) are more than what the
usual writers take, and because a fixed order and no metadata of the day are the point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bundled_checkpoint.json_file import json_bytes
from bundled_checkpoint.weights import StoredTensor

ITEM_BYTES = {"F32": 4, "BF16": 2}
HEADER_ALIGNMENT = 8


def shard_files(tensors: Sequence[StoredTensor], count: int) -> dict[str, bytes]:
    """Contents of `count` shards and of their index by file name.

    Tensors keep their order between shards, and what lies under one layer's prefix is in one shard:
    an Engram table is beside its scales.
    """
    total = sum(len(tensor.data) for tensor in tensors)
    units: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        units.setdefault(_unit(tensor.name), []).append(tensor)
    shards: list[list[StoredTensor]] = [[] for _ in range(count)]
    written = 0
    for unit in units.values():
        shards[written * count // total].extend(unit)
        written += sum(len(tensor.data) for tensor in unit)
    files: dict[str, bytes] = {}
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        files[name] = _shard(shard)
        weight_map |= {tensor.name: name for tensor in shard}
    index = {
        "metadata": {"total_size": total},
        "weight_map": dict(sorted(weight_map.items())),
    }
    return files | {"model.safetensors.index.json": json_bytes(index)}


def _unit(name: str) -> str:
    """`layers.3` or `mtp.0` for a tensor of a layer, else the name."""
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in ("layers", "mtp") else name


def _shard(tensors: Sequence[StoredTensor]) -> bytes:
    """One file: wide items first, so that every tensor is aligned to its items, then by name."""
    ordered = sorted(tensors, key=lambda t: (-ITEM_BYTES.get(t.dtype, 1), t.name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in ordered:
        end = offset + len(tensor.data)
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json_bytes(header, indent=None)
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text + b"".join(tensor.data for tensor in ordered)
