"""Backends with one mistake each in the cache family: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Batch, Compressed, Pool, Region
from deepinfer.conformance.case import Failure
from deepinfer.formats import Quantised
from deepinfer.formats.entries import EntryFormat
from tests.conformance.mutants import dense
from tests.conformance.mutants.variant import Variant, interleaved, with_arguments


def reformatted(region: Region, form: type[EntryFormat]) -> Region:
    """The same region whose entries a faulty format writes or reads."""
    return replace(region, format=form(**vars(region.format)))


class _Swapped(EntryFormat):
    def encode(self, values: Tensor) -> Quantised:
        codes, scales = super().encode(values)
        return Quantised((codes & 15) << 4 | codes >> 4, scales)


class NibblesSwapped(Variant, seen_at="store norm_rope_store"):
    """Stored FP4 entries have their even channels in the high nibble."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        if region.format.name != "window":
            region = reformatted(region, _Swapped)
        super().store(values, region, entries, batch)


class _NextScale(EntryFormat):
    def encode(self, values: Tensor) -> Quantised:
        codes, scales = super().encode(values)
        return Quantised(codes, scales.roll(1, -1))


class ScaleOfNextGroup(Variant, seen_at="store"):
    """Every group's scale is stored in the place of the next one."""

    store = with_arguments("store", region=lambda region: reformatted(region, _NextScale))


class _UnitScale(EntryFormat):
    def decode(self, data: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        one = 0x38 if self.name == "main" else 127
        return super().decode(data, torch.full_like(scales, one), dtype)


class ScaleDefaultedToOne(Variant, seen_at="load"):
    """Window entries are read as if every scale were 1."""

    def load(self, region: Region, *rest: Any) -> Tensor:
        if region.format.name == "window":
            region = reformatted(region, _UnitScale)
        return super().load(region, *rest)


class PlanarReadInterleaved(Variant, seen_at="load"):
    """Index keys are read with their scales behind each entry, as main entries are."""

    load = with_arguments("load", region=interleaved)


class MinusOneStored(Variant, seen_at="store update_context", failure=Failure.WRITE):
    """Entry -1 wraps to the sequence's last entry."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        owner = batch.sequence.clamp(min=0)
        table = batch.table(region.group)
        last = (table.first[owner] + table.blocks.shape[1]) * region.entries - 1
        super().store(values, region, torch.where(entries < 0, last, entries), batch)


class MinusOneLoaded(Variant, seen_at="load"):
    """Entry -1 is read as the sequence's last entry."""

    def load(
        self, region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
    ) -> Tensor:
        last = batch.context_lengths[sequence.clamp(min=0)] - 1
        return super().load(region, sequence, torch.where(entries < 0, last, entries), batch, dtype)


class PastTheLastEntry(Variant, seen_at="store", failure=Failure.WRITE):
    """Each row spills into the entry behind its own, which only the last one's does for good."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        behind = torch.where(entries >= 0, entries + 1, -1)
        super().store(values, region, behind, batch)
        super().store(values, region, entries, batch)


class FirstPageIgnored(Variant, seen_at="store"):
    """The window table is read from page 0, not from the first page that is kept."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        window = replace(batch.window, first=torch.zeros_like(batch.window.first))
        super().store(values, region, entries, replace(batch, window=window))


class CopyReversed(Variant, seen_at="copy stateful.forked", failure=Failure.WRITE):
    """Blocks are copied from the target to the source."""

    copy = with_arguments("copy", pairs=lambda pairs: pairs.flip(1))


class ExportInOrderOfBlocks(Variant, seen_at="export stateful.moved"):
    """Images come in ascending order of blocks, not in the order asked for."""

    export = with_arguments("export", blocks=lambda blocks: blocks.sort().values)


class ExportWithPadding(Variant, seen_at="export", failure=Failure.SHAPE):
    """An image is the whole stride of its block, padding included."""

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        return pool.data.index_select(0, blocks)


class ImportOverPadding(Variant, seen_at="import_", failure=Failure.WRITE):
    """An imported image clears the bytes behind it."""

    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        super().import_(pool, blocks, images)
        pool.data[blocks, pool.image_bytes :] = 0


class MembersNotKept(Variant, seen_at="compress stateful.rollback"):
    """The ring keeps the last two members of a step alone, so no more can be taken back."""

    def compress(self, *arguments: Any) -> Compressed:
        _, _, state, batch, *_ = arguments
        if state is None:
            return super().compress(*arguments)
        before = state.members.clone()
        done = super().compress(*arguments)
        for owner, slot in enumerate(batch.slots.tolist()):
            end = int(batch.context_lengths[owner])
            kept = {(end - back) % state.ring for back in (1, 2)}
            for place in range(state.ring):
                if place not in kept:
                    state.members[slot, place] = before[slot, place]
        return done


class PendingForgotten(
    Variant, seen_at="compress stateful.chunks stateful.resumed", failure=Failure.WRITE
):
    """The compressor forgets the members of earlier steps."""

    def compress(self, *arguments: Any) -> Compressed:
        _, _, state, *_ = arguments
        if state is not None:
            state.members.zero_()
        return super().compress(*arguments)


class GatesIgnored(Variant, seen_at="compress update_context"):
    """The compressor takes the mean of its members in place of their softmax."""

    compress = with_arguments("compress", gates=lambda gates: None if gates is None else gates * 0)


class EntryOnePositionLate(Variant, seen_at="update_context"):
    """Entries are turned by the position of their last token, not of their first."""

    rope = with_arguments("rope", positions=lambda positions: positions + 1)


class NormWeightUnused(Variant, seen_at="norm_rope_store"):
    """The norm of the index keys is computed without its weight."""

    norm_rope_store = with_arguments("norm_rope_store", weight=torch.ones_like)


class HalvesPaired(dense.HalvesPaired, seen_at="norm_rope_store"):
    """Index keys are turned in pairs of halves, not in adjacent pairs."""
