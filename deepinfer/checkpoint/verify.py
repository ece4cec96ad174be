"""A checkpoint checked against its configuration, in both directions, by headers alone.

Every tensor of every component is compared by name, dtype, shape and file range before any byte
of weights is used. Source: model specification, sections 2.1 to 2.3 and appendix C.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deepinfer.checkpoint.header import ShardHeader, StoredTensor, read_header
from deepinfer.checkpoint.index import ShardIndex
from deepinfer.checkpoint.kinds import ExpectedTensor, Kind
from deepinfer.checkpoint.progress import progress_bar
from deepinfer.errors import (
    CheckpointIndexError,
    MissingScaleError,
    MissingShardError,
    MissingTensorError,
    TensorMismatchError,
    UnexpectedTensorError,
)

PREFIX = "model."
SHOWN = 5
SPARE_TENSORS = 100_000  # missing ones that are still named
PLAIN_DTYPES = ("BF16", "F32")


class Located(NamedTuple):
    """A stored tensor and the position of its shard in the sorted list of shards."""

    shard: int
    tensor: StoredTensor


def listed(names: Iterable[str]) -> str:
    """The count and up to five of the names, for a message."""
    ordered = sorted(names)
    shown = ", ".join(name if len(name) <= 200 else name[:200] + "..." for name in ordered[:SHOWN])
    rest = f", and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return f"{len(ordered)} tensor{'s' if len(ordered) != 1 else ''}: {shown}{rest}"


def read_shards(
    directory: Path, index: ShardIndex, *, progress: bool = True
) -> tuple[ShardHeader, ...]:
    """The headers of all shards, in the order of the index.

    Errors: MissingShardError with all missing names; whatever `read_header` raises.
    """
    missing = [name for name in index.shards if not _exists(directory / name)]
    if missing:
        shown = ", ".join(name[:200] for name in missing[:SHOWN])
        shown += ", ..." if len(missing) > SHOWN else ""
        raise MissingShardError(
            f"{directory}: {len(missing)} of {len(index.shards)} shards are missing: {shown}; "
            "fetch them again (a symbolic link may point nowhere)"
        )
    headers = []
    with progress_bar("checking shards", len(index.shards), enabled=progress) as advance:
        for name in index.shards:
            headers.append(read_header(directory / name))
            advance(1)
    return tuple(headers)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False


def locate(
    directory: Path, index: ShardIndex, headers: Sequence[ShardHeader]
) -> dict[str, Located]:
    """All tensors by name without the optional `model.` prefix, after comparing index and shards.

    Errors: CheckpointIndexError (a tensor in two shards; in a shard but not in the index; in the
    index but not in its shard; two names that differ by the prefix alone).
    """
    found: dict[str, Located] = {}
    twice: list[str] = []
    for number, header in enumerate(headers):
        for tensor in header.tensors:
            if tensor.name in found:
                first = index.shards[found[tensor.name].shard]
                twice.append(f"{tensor.name} ({first}, {index.shards[number]})")
            else:
                found[tensor.name] = Located(number, tensor)
    if twice:
        raise CheckpointIndexError(
            f"{directory}: tensors in two shards, each must be in one: {listed(twice)}"
        )
    if index.weight_map is not None:
        _compare(directory, index, index.weight_map, found)
    return _without_prefix(directory, found)


def _compare(
    directory: Path, index: ShardIndex, weight_map: Mapping[str, str], found: Mapping[str, Located]
) -> None:
    unindexed = [name for name in found if name not in weight_map]
    if unindexed:
        raise CheckpointIndexError(
            f"{directory}: in a shard but absent from the index: {listed(unindexed)}; "
            "index and shards must come from the same revision"
        )
    absent = [
        f"{name} ({shard})"
        for name, shard in weight_map.items()
        if name not in found or index.shards[found[name].shard] != shard
    ]
    if absent:
        raise CheckpointIndexError(
            f"{directory}: in the index but not in the shard that it names: {listed(absent)}; "
            "index and shards must come from the same revision"
        )
    total = sum(located.tensor.nbytes for located in found.values())
    if index.total_size is not None and index.total_size != total:
        warnings.warn(
            f"{directory}: the index says that the tensors take {index.total_size:,} bytes, "
            f"the shards hold {total:,}; the shards are used",
            stacklevel=2,
        )


def _without_prefix(directory: Path, found: dict[str, Located]) -> dict[str, Located]:
    if not any(name.startswith(PREFIX) for name in found):
        return found
    bare: dict[str, Located] = {}
    clashes = []
    for name, located in found.items():
        stripped = name.removeprefix(PREFIX)
        if stripped in bare:
            clashes.append(stripped)
        bare[stripped] = Located(located.shard, located.tensor._replace(name=stripped))
    if clashes:
        raise CheckpointIndexError(
            f"{directory}: stored with and without the prefix {PREFIX!r}: {listed(clashes)}"
        )
    return bare


def required(
    directory: Path, tensors: Iterable[ExpectedTensor], found: Mapping[str, Located]
) -> list[ExpectedTensor]:
    """All of `tensors`, unless they are far more than the shards hold.

    Then MissingTensorError is raised at once, because a damaged count in config.json may ask for
    billions.
    """
    limit = 2 * len(found) + SPARE_TENSORS
    expected = list(itertools.islice(tensors, limit + 1))
    if len(expected) > limit:
        raise MissingTensorError(
            f"{directory}: config.json requires more than {limit:,} tensors and the shards hold "
            f"{len(found):,}; its numbers of layers and experts do not belong to these shards"
        )
    return expected


def check(
    directory: Path,
    expected: Sequence[ExpectedTensor],
    found: Mapping[str, Located],
    *,
    quantised: bool,
) -> None:
    """Compare what the configuration requires with what the shards hold.

    quantised: config.json has a quantization_config. Without it the stored dtype of each FP8 or
    FP4 value decides: codes with scales, or BF16 / F32 at the full logical shape and no scales.

    Errors, in this order: MissingScaleError, MissingTensorError, UnexpectedTensorError,
    TensorMismatchError.
    """
    known: set[str] = set()
    orphans: list[str] = []
    missing: list[str] = []
    unscaled: list[str] = []
    mismatches: list[str] = []
    for item in expected:
        known.add(item.name)
        located = found.get(item.name)
        scale = found.get(item.scale_name) if item.kind.quantised else None
        if item.kind.quantised:
            known.add(item.scale_name)
        if located is None:
            if scale is not None:
                orphans.append(item.scale_name)
            else:
                missing.append(item.name)
            continue
        stored = located.tensor
        coded = item.kind.quantised and stored.dtype == item.kind.code_dtype
        problem = _mismatch(item, stored, coded=coded, quantised=quantised)
        if problem is not None:
            mismatches.append(problem)
        elif coded and scale is None:
            unscaled.append(item.name)
        elif scale is not None:
            if not coded:
                orphans.append(item.scale_name)
            elif (scale.tensor.dtype, scale.tensor.shape) != ("F8_E8M0", item.scale_shape):
                mismatches.append(_different(scale.tensor, "F8_E8M0", item.scale_shape))
    if unscaled:
        raise MissingScaleError(
            f"{directory}: quantised without a .scale (none is ever assumed): {listed(unscaled)}"
        )
    if orphans:
        raise MissingScaleError(
            f"{directory}: scales without a quantised .weight: {listed(orphans)}"
        )
    unexpected = [name for name in found if name not in known]
    if missing:
        more = f"; of no component are {listed(unexpected)}" if unexpected else ""
        raise MissingTensorError(
            f"{directory}: config.json requires, and no shard holds, {listed(missing)}{more}"
        )
    if unexpected:
        raise UnexpectedTensorError(
            f"{directory}: belong to no component (text, draft, vision) of this config.json: "
            f"{listed(unexpected)}"
        )
    if mismatches:
        raise TensorMismatchError(f"{directory}: wrong dtype or shape in {listed(mismatches)}")


def _different(stored: StoredTensor, dtype: str, shape: tuple[int, ...]) -> str:
    return f"{stored.name} (is {stored.dtype} {list(stored.shape)}, must be {dtype} {list(shape)})"


def _mismatch(
    item: ExpectedTensor, stored: StoredTensor, *, coded: bool, quantised: bool
) -> str | None:
    """What is wrong with the dtype or shape of one value, or None."""
    if item.kind in (Kind.FP32, Kind.BF16):
        allowed: tuple[str, ...] = PLAIN_DTYPES
    elif quantised:
        allowed = (item.kind.code_dtype,)
    else:
        allowed = (*PLAIN_DTYPES, item.kind.code_dtype)
    shape = item.code_shape if coded or (item.kind.quantised and quantised) else item.shape
    if stored.dtype in allowed and stored.shape == shape:
        return None
    return _different(stored, " or ".join(allowed), shape)
