"""Backends with one mistake each in the cache family: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Batch, Compressed, CompressorState, Pool, Region
from deepinfer.formats import Quantised
from deepinfer.formats.entries import EntryFormat
from deepinfer_reference.backend import ReferenceBackend


def reformatted(region: Region, form: type[EntryFormat]) -> Region:
    """The same region whose entries a faulty format writes or reads."""
    return replace(region, format=form(**vars(region.format)))


class _Swapped(EntryFormat):
    def encode(self, values: Tensor) -> Quantised:
        codes, scales = super().encode(values)
        return Quantised((codes & 15) << 4 | codes >> 4, scales)


class NibblesSwapped(ReferenceBackend):
    """Stored FP4 entries have their even channels in the high nibble."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        if region.format.name != "window":
            region = reformatted(region, _Swapped)
        super().store(values, region, entries, batch)


class _NextScale(EntryFormat):
    def encode(self, values: Tensor) -> Quantised:
        codes, scales = super().encode(values)
        return Quantised(codes, scales.roll(1, -1))


class ScaleOfNextGroup(ReferenceBackend):
    """Every group's scale is stored in the place of the next one."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        super().store(values, reformatted(region, _NextScale), entries, batch)


class _UnitScale(EntryFormat):
    def decode(self, data: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        one = 0x38 if self.name == "main" else 127
        return super().decode(data, torch.full_like(scales, one), dtype)


class ScaleDefaultedToOne(ReferenceBackend):
    """Window entries are read as if every scale were 1."""

    def load(self, region: Region, *rest: Any) -> Tensor:
        if region.format.name == "window":
            region = reformatted(region, _UnitScale)
        return super().load(region, *rest)


class PlanarReadInterleaved(ReferenceBackend):
    """Index keys are read with their scales behind each entry, as main entries are."""

    def load(self, region: Region, *rest: Any) -> Tensor:
        form = replace(region.format, layout="interleaved")
        return super().load(replace(region, format=form), *rest)


class MinusOneStored(ReferenceBackend):
    """Entry -1 wraps to the sequence's last entry."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        owner = batch.sequence.clamp(min=0)
        table = batch.table(region.group)
        last = (table.first[owner] + table.blocks.shape[1]) * region.entries - 1
        super().store(values, region, torch.where(entries < 0, last, entries), batch)


class MinusOneLoaded(ReferenceBackend):
    """Entry -1 is read as the sequence's last entry."""

    def load(
        self, region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
    ) -> Tensor:
        last = batch.context_lengths[sequence.clamp(min=0)] - 1
        return super().load(region, sequence, torch.where(entries < 0, last, entries), batch, dtype)


class PastTheLastEntry(ReferenceBackend):
    """Each row spills into the entry behind its own, which only the last one's does for good."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        behind = torch.where(entries >= 0, entries + 1, -1)
        super().store(values, region, behind, batch)
        super().store(values, region, entries, batch)


class FirstPageIgnored(ReferenceBackend):
    """The window table is read from page 0, not from the first page that is kept."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        window = replace(batch.window, first=torch.zeros_like(batch.window.first))
        super().store(values, region, entries, replace(batch, window=window))


class CopyReversed(ReferenceBackend):
    """Blocks are copied from the target to the source."""

    def copy(self, pool: Pool, pairs: Tensor) -> None:
        super().copy(pool, pairs.flip(1))


class ExportInOrderOfBlocks(ReferenceBackend):
    """Images come in ascending order of blocks, not in the order asked for."""

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        return super().export(pool, blocks.sort().values)


class ExportWithPadding(ReferenceBackend):
    """An image is the whole stride of its block, padding included."""

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        return pool.data.index_select(0, blocks)


class ImportOverPadding(ReferenceBackend):
    """An imported image clears the bytes behind it."""

    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        super().import_(pool, blocks, images)
        pool.data[blocks, pool.image_bytes :] = 0


class MembersNotKept(ReferenceBackend):
    """The ring keeps the last two members of a step alone, so no more can be taken back."""

    def compress(
        self,
        values: Tensor,
        gates: Tensor | None,
        state: CompressorState | None,
        batch: Batch,
        *rest: Any,
    ) -> Compressed:
        if state is None:
            return super().compress(values, gates, state, batch, *rest)
        before = state.members.clone()
        done = super().compress(values, gates, state, batch, *rest)
        for owner, slot in enumerate(batch.slots.tolist()):
            end = int(batch.context_lengths[owner])
            kept = {(end - back) % state.ring for back in (1, 2)}
            for place in range(state.ring):
                if place not in kept:
                    state.members[slot, place] = before[slot, place]
        return done


class PendingForgotten(ReferenceBackend):
    """The compressor forgets the members of earlier steps."""

    def compress(
        self, values: Tensor, gates: Tensor | None, state: CompressorState | None, *rest: Any
    ) -> Compressed:
        if state is not None:
            state.members.zero_()
        return super().compress(values, gates, state, *rest)


class GatesIgnored(ReferenceBackend):
    """The compressor takes the mean of its members in place of their softmax."""

    def compress(self, values: Tensor, gates: Tensor | None, *rest: Any) -> Compressed:
        return super().compress(values, None if gates is None else gates * 0, *rest)


class EntryOnePositionLate(ReferenceBackend):
    """Entries are turned by the position of their last token, not of their first."""

    def rope(self, x: Tensor, positions: Tensor, *rest: Any) -> Tensor:
        return super().rope(x, positions + 1, *rest)


class NormWeightUnused(ReferenceBackend):
    """The norm of the index keys is computed without its weight."""

    def norm_rope_store(self, x: Tensor, weight: Tensor, *rest: Any) -> None:
        super().norm_rope_store(x, torch.ones_like(weight), *rest)


class HalvesPaired(ReferenceBackend):
    """Index keys are turned in pairs of halves, not in adjacent pairs."""

    def rope(self, x: Tensor, positions: Tensor, frequencies: Tensor, *rest: Any) -> Tensor:
        kept = x.shape[-1] - 2 * len(frequencies)
        pairs = torch.stack(x[..., kept:].chunk(2, -1), -1).flatten(-2)
        whole = torch.cat((x[..., :kept], pairs), -1)
        turned = super().rope(whole, positions, frequencies, *rest)[..., kept:]
        return torch.cat((x[..., :kept], turned[..., ::2], turned[..., 1::2]), -1)
