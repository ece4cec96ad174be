"""Cache family of the reference: entries of the paged pools, and the compressor."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.backend import (
    Batch,
    Cache,
    Compressed,
    CompressorState,
    Pool,
    Region,
    block_of,
)
from deepinfer.errors import UnsupportedOperatorError
from deepinfer_reference.tiling import row_tiles


class Entries(NamedTuple):
    """The bytes of all entries of a region, as views of its pool.

    data [blocks, entries, data_bytes] and scales [blocks, entries, scale_bytes], uint8.
    """

    data: Tensor
    scales: Tensor


def entries_of(region: Region) -> Entries:
    """View a region of every block of its pool; nothing is copied."""
    form, count = region.format, region.entries
    size = form.region_bytes(count, region.width)
    part = region.pool.data[:, region.offset : region.offset + size]
    data_bytes = form.data_bytes(region.width)
    if form.layout == "interleaved":
        whole = torch.unflatten(part, 1, (count, -1))
        return Entries(whole[..., :data_bytes], whole[..., data_bytes:])
    border = count * data_bytes
    return Entries(
        torch.unflatten(part[:, :border], 1, (count, -1)),
        torch.unflatten(part[:, border:], 1, (count, -1)),
    )


def load_entries(
    region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
) -> Tensor:
    """Values of entries of sequences, int64 of equal shape [...]: -> [..., D], zeros for -1."""
    block = block_of(region, batch.table(region.group), sequence, entries)
    place = torch.remainder(entries, region.entries)
    stored = entries_of(region)
    values = region.format.decode(stored.data[block, place], stored.scales[block, place], dtype)
    return torch.where((block > 0).unsqueeze(-1), values, 0)


class ReferenceCache(Cache):
    """Operators that write and read the pools."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        """Encode every row; a row without entry or sequence goes to block 0."""
        block = block_of(region, batch.table(region.group), batch.sequence, entries)
        place = torch.remainder(entries, region.entries)
        codes, scales = region.format.encode(values)
        stored = entries_of(region)
        stored.data[block, place] = codes
        stored.scales[block, place] = scales

    def load(
        self, region: Region, sequence: Tensor, entries: Tensor, batch: Batch, dtype: torch.dtype
    ) -> Tensor:
        """Exact, so without tiles."""
        return load_entries(region, sequence, entries, batch, dtype)

    def compress(
        self,
        values: Tensor,
        gates: Tensor | None,
        state: CompressorState | None,
        batch: Batch,
        ratio: int,
        dtype: torch.dtype,
    ) -> Compressed:
        """Members come from this step's rows or from the ring, then the ring takes the new ones."""
        here = batch.sequence >= 0
        complete = here & ((batch.positions + 1) % ratio == 0)
        entries = torch.where(complete, batch.positions // ratio, -1)
        if gates is None:
            return Compressed(values.to(dtype), entries)
        assert state is not None
        members = _members(torch.stack((values, gates), 1), state, batch, ratio)
        _keep(torch.stack((values, gates), 1), state, batch)
        latents = row_tiles(lambda members: _merge(members).to(dtype), members)
        return Compressed(torch.where(complete.unsqueeze(-1), latents, 0), entries)

    def copy(self, pool: Pool, pairs: Tensor) -> None:
        """All sources are read before the first target is written."""
        pool.data.index_copy_(0, pairs[:, 1], pool.data.index_select(0, pairs[:, 0]))

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        """The first `image_bytes` of each block."""
        _check_canonical("export", pool)
        return pool.data[:, : pool.image_bytes].index_select(0, blocks)

    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        """Padding behind an image stays as it is."""
        _check_canonical("import_", pool)
        pool.data[:, : pool.image_bytes].index_copy_(0, blocks, images)


def _check_canonical(operator: str, pool: Pool) -> None:
    if not pool.canonical:
        raise UnsupportedOperatorError(
            f"{operator}: this pool has bf16 entries, which no image holds; only pools of FP4 "
            "entries are exported: leave cache_dtype out"
        )


def _members(rows: Tensor, state: CompressorState, batch: Batch, ratio: int) -> Tensor:
    """The last `ratio` tokens up to each row: rows [T, 2, D] -> [T, ratio, 2, D], oldest first.

    Rows of a sequence stand together and in order, so a token of this step is `back` rows above.
    """
    sequence = batch.sequence.clamp(min=0)
    slot = _slots(batch)
    row = torch.arange(batch.num_rows, device=rows.device)
    age = row - batch.query_start[sequence]
    found = []
    for back in range(ratio - 1, -1, -1):
        kept = state.members[slot, (batch.positions - back) % state.ring]
        recent = rows[(row - back).clamp(min=0)]
        found.append(torch.where((age >= back).view(-1, 1, 1), recent, kept))
    return torch.stack(found, 1)


def _keep(rows: Tensor, state: CompressorState, batch: Batch) -> None:
    """Leave each sequence's last rows in its ring; all others go to slot 0."""
    row = torch.arange(batch.num_rows, device=rows.device)
    end = batch.query_start[batch.sequence.clamp(min=0) + 1]
    slot = torch.where(row >= end - state.ring, _slots(batch), 0)
    state.members[slot, batch.positions % state.ring] = rows


def _slots(batch: Batch) -> Tensor:
    slots = batch.slots[batch.sequence.clamp(min=0)]
    return torch.where(batch.sequence >= 0, slots, 0)


def _merge(members: Tensor) -> Tensor:
    """Softmax of the gates over the members, per channel: [M, r, 2, D] -> [M, D]."""
    values, gates = members.unbind(2)
    weights = torch.exp(gates - gates.amax(1, keepdim=True))
    shares = weights / weights.sum(1, keepdim=True)
    return (values * shares).sum(1)
