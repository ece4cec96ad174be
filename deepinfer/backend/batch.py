"""`Batch`: the rows of one step, and the paged pools that the rows address.

A batch is ragged: a chunk of a prompt, one decode row and a verified draft are all rows. It is
built once per step on the host and lives on the device. Source: the design, "Cache" and "The way
of one request".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepinfer.formats import EntryFormat

CONTEXT = "context"
WINDOW = "window"


class Plan:
    """What a backend derives from a batch once per step (split sizes, work lists); empty here."""


@dataclass(frozen=True)
class Pool:
    """Storage of one group of the cache: `data` uint8 [num_blocks, stride].

    The first `image_bytes` of a row are the canonical block image; a backend may pad the stride.
    Block 0 is never handed out: writes of padding rows land there. canonical: entries are those of
    the published format; a pool of others is for comparison and has no image to export.
    """

    data: Tensor
    image_bytes: int
    canonical: bool = True

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, block 0 included."""
        return self.data.shape[0]


@dataclass(frozen=True)
class Region:
    """The part of every block of a pool that holds one layer's entries of one format.

    group: which table of the batch addresses it ("context" or "window"). offset: bytes from the
    start of the block. width: channels of an entry. entries: entries per block.
    """

    pool: Pool
    group: str
    offset: int
    format: EntryFormat
    width: int
    entries: int


@dataclass(frozen=True)
class Table:
    """Blocks of each sequence in one pool group.

    blocks [N, width] int64, unused places 0. first [N] int64: number of the sequence's block that
    stands in column 0 (0 for the context group, the first kept page for the window group).
    """

    blocks: Tensor
    first: Tensor


@dataclass(frozen=True)
class Batch:
    """Everything that the operators of one step know about their rows. Device tensors.

    token_ids [T] int64; positions [T] int64, absolute; sequence [T] int64, the row's place among
    the N sequences, -1 for a padding row; query_start [N+1] int64; context_lengths [N] int64,
    lengths after this step; slots [N] int64; image_mask [T] bool; history [T, n] int64, compressed
    ids of the tokens at t, t-1, ... (-1 where the token is an image or before the sequence), or
    None without Engram. max_context is a host bound of every context length in the batch: it
    sizes score rows and never changes a value.
    """

    token_ids: Tensor
    positions: Tensor
    sequence: Tensor
    query_start: Tensor
    context_lengths: Tensor
    slots: Tensor
    image_mask: Tensor
    context: Table
    window: Table
    max_context: int
    history: Tensor | None = None
    plan: Plan = field(default_factory=Plan)

    @property
    def num_rows(self) -> int:
        """T."""
        return self.token_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        """N."""
        return self.context_lengths.shape[0]

    def table(self, group: str) -> Table:
        """The table of a pool group."""
        return self.context if group == CONTEXT else self.window


def block_of(region: Region, table: Table, sequence: Tensor, entries: Tensor) -> Tensor:
    """Pool block of each (sequence, entry), int64; 0 where the entry or the sequence is -1.

    sequence, entries: int64 of equal shape. An entry outside its sequence's table is a
    programmer's error and yields block 0 as well, so that it can never touch another sequence.
    """
    column = torch.div(entries, region.entries, rounding_mode="floor")
    row = sequence.clamp(min=0)
    column = column - table.first[row]
    inside = (entries >= 0) & (sequence >= 0) & (column >= 0) & (column < table.blocks.shape[1])
    blocks = table.blocks[row, column.clamp(0, table.blocks.shape[1] - 1)]
    return torch.where(inside, blocks, 0)
