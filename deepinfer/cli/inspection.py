"""The report of `deepinfer inspect`: what a checkpoint holds and what it takes to run it.

`inspect_checkpoint` gathers it from headers, without reading a weight; `render` makes the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer.cache import CacheLayout
from deepinfer.cache.size import CacheSize, cache_size, v4_bytes_per_token, vendor_sequence_bytes
from deepinfer.checkpoint import Checkpoint, MemoryPlan
from deepinfer.checkpoint.plan import human_bytes
from deepinfer.checkpoint.statistics import (
    ActiveParameters,
    ParameterCount,
    Tally,
    active_parameters,
    count_parameters,
    tally,
)
from deepinfer.config import release_limits
from deepinfer.errors import UsageError

DEFAULT_LENGTH = 4096


@dataclass(frozen=True)
class Section:
    """A table of the report under a title.

    key, data: what the section adds to the JSON report, and under which name. numbers: the columns
    between the first and the last are numbers, and so aligned to the right.
    """

    title: str
    rows: Sequence[Sequence[str]]
    key: str = ""
    data: Any = None
    numbers: bool = True


@dataclass(frozen=True)
class Inspection:
    """Everything that `inspect` reports about a checkpoint.

    bytes_per_token: context cache of a token. Two numbers are for comparison: bytes_per_token_v4 is
    the same in DeepSeek-V4's layout at this depth, and ring_bytes the state of a sequence in the
    vendor's ring layout. release_limits: where the configuration is outside the limits of one
    vendor's kernels, which is no error.
    """

    directory: str
    shards: int
    tensors: int
    stored_bytes: int
    tallies: tuple[Tally, ...]
    parameters: ParameterCount
    active: ActiveParameters
    first_decoder_layer: int | None
    bytes_per_token: float
    bytes_per_token_v4: float
    ring_bytes: int
    memory: MemoryPlan
    cache: CacheSize
    release_limits: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The fields, with totals derived from them, as plain values for JSON."""
        values = dataclasses.asdict(self)
        values["parameters"] |= {
            "backbone": self.parameters.backbone,
            "total": self.parameters.total,
        }
        values["active"] |= {"prefill": self.active.prefill, "decode": self.active.decode}
        values["memory"]["anonymous_bytes"] = self.memory.anonymous_bytes
        values["cache"] |= {
            "context_bytes": self.cache.context_bytes,
            "window_bytes": self.cache.window_bytes,
            "slots_bytes": self.cache.slots_bytes,
            "total_bytes": self.cache.total_bytes,
        }
        return values


def plan_length(checkpoint: Checkpoint, asked: int | None) -> int:
    """Tokens per sequence of the memory plan: as asked, else 4096 or the checkpoint's maximum.

    Errors: UsageError if it is outside what the configuration allows.
    """
    limit = checkpoint.config.text.max_position_embeddings
    length = min(DEFAULT_LENGTH, limit) if asked is None else asked
    if not 1 <= length <= limit:
        raise UsageError(
            f"length = {length}: must be 1 to {limit} (max_position_embeddings of this checkpoint)"
        )
    return length


def inspect_checkpoint(checkpoint: Checkpoint, *, batch: int, length: int | None) -> Inspection:
    """Gather the report for `batch` sequences of `length` tokens (None: see `plan_length`).

    Errors: UsageError if batch or length is outside what the configuration allows.
    """
    config, text = checkpoint.config, checkpoint.config.text
    if batch < 1:
        raise UsageError(f"batch = {batch}: must be at least 1")
    length = plan_length(checkpoint, length)
    expected = list(checkpoint.expected())
    tallies = tuple(tally(checkpoint))
    return Inspection(
        directory=str(checkpoint.directory),
        shards=checkpoint.shard_count,
        tensors=sum(entry.tensors + entry.scales for entry in tallies),
        stored_bytes=sum(entry.stored_bytes for entry in tallies),
        tallies=tallies,
        parameters=count_parameters(expected),
        active=active_parameters(config, expected),
        first_decoder_layer=text.first_decoder_layer,
        bytes_per_token=CacheLayout(text).bytes_per_token(),
        bytes_per_token_v4=v4_bytes_per_token(text),
        ring_bytes=vendor_sequence_bytes(text),
        memory=checkpoint.plan,
        cache=cache_size(text, batch=batch, length=length, drafts="draft" in checkpoint.components),
        release_limits=tuple(str(limit) for limit in release_limits(config)),
    )


def short_count(count: int) -> str:
    """A parameter count with two decimals: 7.89B, 485.27M, 1.54k."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.2f}{unit}"
    return str(count)


def render(inspection: Inspection, extra: Sequence[Section] = ()) -> str:
    """The report as plain text."""
    sections = (
        _tensors(inspection),
        _parameters(inspection),
        _active(inspection),
        _cache(inspection),
        _memory(inspection),
        Section(
            "release limits left (of one vendor's kernels; not errors)",
            [(limit,) for limit in inspection.release_limits] or [("none",)],
        ),
        *extra,
    )
    head = (
        f"{inspection.directory}: {inspection.tensors:,} tensors in {inspection.shards} "
        f"shard{'s' if inspection.shards != 1 else ''}, {inspection.stored_bytes:,} bytes"
    )
    return "\n\n".join([head, *(_table(section) for section in sections)])


def _table(section: Section) -> str:
    """Title and rows as text. The last of three or more columns is aligned to the left."""
    columns = max((len(row) for row in section.rows), default=0)
    widths = [
        max((len(row[i]) for row in section.rows if i < len(row)), default=0)
        for i in range(columns)
    ]
    lines = [section.title]
    for row in section.rows:
        cells = [
            cell if i and i == columns - 1 and (columns > 2 or not section.numbers)
            else cell.rjust(widths[i]) if i else cell.ljust(widths[i])
            for i, cell in enumerate(row)
        ]  # fmt: skip
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _tensors(inspection: Inspection) -> Section:
    rows = [("component, kind", "tensors", "scales", "parameters", "bytes", "")]
    rows += [
        (
            f"{entry.component}, {entry.kind}",
            f"{entry.tensors:,}",
            f"{entry.scales:,}",
            f"{entry.parameters:,}",
            f"{entry.stored_bytes:,}",
            human_bytes(entry.stored_bytes),
        )
        for entry in inspection.tallies
    ]
    return Section("tensors by component and kind", rows)


def _parameters(inspection: Inspection) -> Section:
    count = inspection.parameters
    rows = [
        ("routed experts", count.routed_experts),
        ("other backbone", count.other_backbone),
        ("backbone", count.backbone),
        ("Engram tables", count.engram_tables),
        ("draft", count.draft),
        ("vision", count.vision),
        ("total", count.total),
    ]
    return Section("parameters", [(name, f"{value:,}", short_count(value)) for name, value in rows])


def _active(inspection: Inspection) -> Section:
    active, border = inspection.active, inspection.first_decoder_layer
    if active.compact:
        with_kv = short_count(active.encoder + active.decoder_kv)
        note = f"layers before {border}; {with_kv} with the KV and index keys of layer {border}"
    else:
        note = "all layers: this schedule has no compact prefill"
    rows = [
        ("prefill, per token", short_count(active.prefill), f"{active.prefill:,}: {note}"),
        (
            "decode, per token",
            short_count(active.decode),
            f"{active.decode:,}: all layers and head",
        ),
    ]
    if active.draft:
        rows.append(
            (
                "draft, per position",
                short_count(active.draft),
                f"{active.draft:,}: without its heads",
            )
        )
    return Section("active parameters (matrices that one token multiplies with)", rows)


def _cache(inspection: Inspection) -> Section:
    cache, per_token = inspection.cache, inspection.bytes_per_token
    v4 = inspection.bytes_per_token_v4
    ratio = f"{v4 / per_token:.1f} times as much" if per_token else "this model caches none"
    window = cache.pages_per_sequence * cache.page_bytes
    rows = [
        ("context, per token", f"{per_token:,.6g}", "one compressed KV per group of layers"),
        (
            "the same, V4's layout",
            f"{v4:,.0f}",
            f"{ratio}: one compressed KV per layer, ratios 4 and 128, 584-byte FP8 entries at "
            "width 512",
        ),
        (
            "window, per sequence",
            f"{window:,}",
            f"{cache.pages_per_sequence} pages of {cache.page_bytes:,}, decoding",
        ),
        ("slot, per sequence", f"{cache.slot_bytes:,}", "pending members of the compressors"),
        ("as rings, per sequence", f"{inspection.ring_bytes:,}", "window and slot, vendor layout"),
    ]
    return Section("cache bytes", rows)


def _memory(inspection: Inspection) -> Section:
    cache = inspection.cache
    title = f"memory plan for a batch of {cache.batch} at {cache.length:,} tokens"
    line = (
        f"cache: {human_bytes(cache.context_bytes)} context, {human_bytes(cache.window_bytes)} "
        f"window, {human_bytes(cache.slots_bytes)} slots: {human_bytes(cache.total_bytes)}"
    )
    return Section(title, [(str(inspection.memory),), (line,)])
