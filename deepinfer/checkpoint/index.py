"""Which shards a checkpoint directory has, and which tensor each is said to hold."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from deepinfer.errors import CheckpointError, CheckpointIndexError, MissingShardError
from deepinfer.strict_json import parse_object

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


@dataclass(frozen=True)
class ShardIndex:
    """Shard file names relative to the directory, sorted, and the shard of each tensor.

    `weight_map` is None where a single `model.safetensors` without an index is the checkpoint.
    `total_size` is what the index says all tensors take in bytes, None where it does not say.
    """

    shards: tuple[str, ...]
    weight_map: dict[str, str] | None
    total_size: int | None


def read_index(directory: Path) -> ShardIndex:
    """Read `model.safetensors.index.json`, or take a lone `model.safetensors`.

    Errors: CheckpointIndexError (broken JSON, no weight_map, a shard name that leaves the
    directory), MissingShardError (neither file exists).
    """
    path = directory / INDEX_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if (directory / SINGLE_NAME).exists():
            return ShardIndex((SINGLE_NAME,), None, None)
        raise MissingShardError(
            f"{directory}: found neither {INDEX_NAME} nor {SINGLE_NAME}; "
            "give the directory of a published checkpoint"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        table = parse_object(data)
    except ValueError as error:
        raise CheckpointIndexError(f"{path}: broken JSON: {error}; fetch the file again") from None
    weight_map = table.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointIndexError(f"{path}: weight_map must be an object that names tensors")
    names = {_shard_name(path, tensor, value) for tensor, value in weight_map.items()}
    metadata = table.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    stray = sorted(file.name for file in directory.glob("*.safetensors") if file.name not in names)
    if stray:
        warnings.warn(
            f"{directory}: {len(stray)} safetensors files that the index does not name are not "
            f"read: {', '.join(stray[:5])}",
            stacklevel=2,
        )
    return ShardIndex(tuple(sorted(names)), weight_map, total if type(total) is int else None)


def _shard_name(path: Path, tensor: str, value: Any) -> str:
    """`value` if it names a file inside the directory of the index."""
    if not isinstance(value, str) or not value.endswith(".safetensors"):
        raise CheckpointIndexError(
            f"{path}: the shard of {tensor[:200]} must be a file name ending in .safetensors"
        )
    relative = PurePosixPath(value)
    if relative.is_absolute() or ".." in relative.parts or "\\" in value or "\0" in value:
        raise CheckpointIndexError(
            f"{path}: the shard {value[:200]!r} of {tensor[:200]} leaves the directory; "
            "only files inside it are allowed"
        )
    return value
