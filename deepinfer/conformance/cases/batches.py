"""Batches and pools for cases, made so that every wrong address changes a result.

Pools start with random bytes. Their blocks are given to sequences in a shuffled order, with unused
blocks in between, and each region has bytes of other layers before and behind it. Which rows of
which sequences a batch has is named by a layout and one length, so both fit into the id of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.backend import Batch, CompressorState, Pool, Region, Table
from deepinfer.backend.batch import CONTEXT, WINDOW
from deepinfer.conformance.oracles.pages import block_numbers, byte_columns
from deepinfer.conformance.values import make
from deepinfer.formats import INDEX, MAIN
from deepinfer.formats import WINDOW as WINDOW_FORMAT

PADDING_ROWS = 3
FOREIGN_BYTES = 96
"""Bytes of other layers before and behind the regions of a context block."""
STRIDE_PADDING = 32
"""Bytes between the image of a block and the next block."""


class Chunk(NamedTuple):
    """The rows start..stop-1 of a sequence, whose earlier positions are in the cache already."""

    start: int
    stop: int


def _ragged(length: int) -> list[Chunk]:
    return [
        Chunk(length - 1, length),
        Chunk(0, (length + 2) // 3),
        Chunk(length // 2, length),
        Chunk(0, 1),
    ]


LAYOUTS: Mapping[str, Callable[[int], list[Chunk]]] = {
    "none": lambda length: [],
    "decode": lambda length: [Chunk(length - 1, length)],
    "prompt": lambda length: [Chunk(0, length)],
    "chunk": lambda length: [Chunk(length // 2, length)],
    "drafts": lambda length: [
        Chunk(max(0, stop - 6), stop) for stop in (length, (length + 1) // 2, length)
    ],
    "ragged": _ragged,
    "padded": _ragged,
}
"""The rows of each layout, for sequences of about a length.

none: no rows. decode: the last row of a sequence. prompt: all its rows. chunk: its second half.
drafts: the last six rows of each of three sequences. ragged: four sequences, with a decode row, a
prompt, a chunk and a first token. padded: the same, followed by rows without a sequence.
"""


def rows_of_layout(layout: str, length: int) -> tuple[list[Chunk], int]:
    """The chunks of a layout and its number of padding rows.

    layout: a name of LAYOUTS, or the rows themselves: "0:5+7:8+pad2" is rows 0 to 4 of a sequence,
    row 7 of another one, and two padding rows. length is not used then.
    """
    if layout in LAYOUTS:
        return LAYOUTS[layout](length), PADDING_ROWS if layout == "padded" else 0
    chunks, padding = [], 0
    for part in layout.split("+"):
        if part.startswith("pad"):
            padding = int(part.removeprefix("pad"))
        else:
            start, stop = part.split(":")
            chunks.append(Chunk(int(start), int(stop)))
    return chunks, padding


@dataclass(frozen=True)
class Geometry:
    """Sizes of a cache. backtrack: the most positions that may be taken back, plus one."""

    width: int = 64
    index_width: int = 32
    ratio: int = 1
    block_tokens: int = 16
    page_tokens: int = 4
    window: int = 8
    backtrack: int = 6

    @property
    def ring(self) -> int:
        """The number of positions in the ring of a compressor."""
        return self.ratio + self.backtrack - 1


class PagedCache:
    """The memory of a KV-source layer, a window layer and a compressor, and a batch that uses it.

    Main and index entries of all complete groups, and window entries from the first kept page on,
    hold values of a class. dtype: that of the state, and of the values before quantisation.
    """

    def __init__(
        self,
        geometry: Geometry,
        layout: str,
        length: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.bfloat16,
        values: str = "normal",
    ) -> None:
        self.geometry = geometry
        self.generator = generator
        chunks, padding = rows_of_layout(layout, length)
        entries = geometry.block_tokens // geometry.ratio
        index_offset = FOREIGN_BYTES
        main_offset = index_offset + INDEX.region_bytes(entries, geometry.index_width)
        image = main_offset + MAIN.region_bytes(entries, geometry.width) + FOREIGN_BYTES
        layer = WINDOW_FORMAT.region_bytes(geometry.page_tokens, geometry.width)
        first = [max(0, c.start - geometry.window + 1) // geometry.page_tokens for c in chunks]
        blocks = [-(-c.stop // geometry.block_tokens) for c in chunks]
        pages = [
            -(-c.stop // geometry.page_tokens) - kept for c, kept in zip(chunks, first, strict=True)
        ]
        self.context_pool, context = self._pool(blocks, [0] * len(chunks), image)
        self.window_pool, window = self._pool(pages, first, 3 * layer)
        self.index = Region(
            self.context_pool, CONTEXT, index_offset, INDEX, geometry.index_width, entries
        )
        self.main = Region(self.context_pool, CONTEXT, main_offset, MAIN, geometry.width, entries)
        self.window = Region(
            self.window_pool, WINDOW, layer, WINDOW_FORMAT, geometry.width, geometry.page_tokens
        )
        self.batch = batch_of(chunks, padding, context, window)
        for region in (self.main, self.index):
            self._fill(region, [range(c.stop // geometry.ratio) for c in chunks], dtype, values)
        kept = [
            range(page * geometry.page_tokens, c.stop)
            for c, page in zip(chunks, first, strict=True)
        ]
        self._fill(self.window, kept, dtype, values)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        shape = len(chunks) + 2, geometry.ring, 2, geometry.width
        self.state = CompressorState(torch.randn(*shape, generator=generator).to(wide))

    def region(self, kind: str) -> Region:
        """The region of a format, which is main, index or window."""
        return {"main": self.main, "index": self.index, "window": self.window}[kind]

    def entries(self, kind: str) -> Tensor:
        """The entry [T] that each row stores: its position, or the group it completes, or -1."""
        if kind == "window":
            return torch.where(self.batch.sequence >= 0, self.batch.positions, -1)
        ratio = self.geometry.ratio
        complete = (self.batch.sequence >= 0) & ((self.batch.positions + 1) % ratio == 0)
        return torch.where(complete, self.batch.positions // ratio, -1)

    @property
    def rows(self) -> int:
        """The number of rows of the batch, with padding rows."""
        return self.batch.num_rows

    def _pool(
        self, counts: Sequence[int], first: Sequence[int], image_bytes: int
    ) -> tuple[Pool, Table]:
        """A pool with twice the blocks that the sequences hold, and their table."""
        number = 2 * sum(counts) + 3
        data = torch.randint(
            0,
            256,
            (number, image_bytes + STRIDE_PADDING),
            dtype=torch.uint8,
            generator=self.generator,
        )
        order = (torch.randperm(number - 1, generator=self.generator) + 1).tolist()
        table = torch.zeros(len(counts), max([1, *counts]), dtype=torch.int64)
        for row, count in enumerate(counts):
            table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
        return Pool(data, image_bytes), Table(table, torch.tensor(first, dtype=torch.int64))

    def _fill(
        self, region: Region, entries: Sequence[range], dtype: torch.dtype, values: str
    ) -> None:
        numbers = torch.tensor([e for part in entries for e in part], dtype=torch.int64)
        owners = torch.tensor(
            [row for row, part in enumerate(entries) for _ in part], dtype=torch.int64
        )
        content = make(values, (len(numbers), region.width), self.generator, dtype)
        write(region, self.batch, owners, numbers, *region.format.encode(content))


def write(
    region: Region, batch: Batch, sequence: Tensor, entries: Tensor, codes: Tensor, scales: Tensor
) -> None:
    """Write codes and scales of entries of sequences into a pool on the host."""
    blocks = block_numbers(region, batch, sequence, entries).unsqueeze(-1)
    for columns, content in zip(byte_columns(region, entries), (codes, scales), strict=True):
        region.pool.data[blocks, columns] = content


def batch_of(chunks: Sequence[Chunk], padding: int, context: Table, window: Table) -> Batch:
    """The batch of these chunks, one for each sequence. Slots are not in order of sequences."""
    positions = [p for c in chunks for p in range(c.start, c.stop)]
    owners = [row for row, c in enumerate(chunks) for _ in range(c.start, c.stop)]
    starts = [0]
    for c in chunks:
        starts.append(starts[-1] + c.stop - c.start)
    rows, count = len(positions) + padding, len(chunks)
    return Batch(
        token_ids=torch.zeros(rows, dtype=torch.int64),
        positions=torch.tensor(positions + [0] * padding, dtype=torch.int64),
        sequence=torch.tensor(owners + [-1] * padding, dtype=torch.int64),
        query_start=torch.tensor(starts, dtype=torch.int64),
        context_lengths=torch.tensor([c.stop for c in chunks], dtype=torch.int64),
        slots=torch.arange(count, 0, -1),
        image_mask=torch.zeros(rows, dtype=torch.bool),
        context=context,
        window=window,
        max_context=max((c.stop for c in chunks), default=0),
    )


def real_rows(batch: Batch) -> int:
    """The number of rows that belong to a sequence; padding rows come after them."""
    return int((batch.sequence >= 0).sum())


def single_rows(batch: Batch, rows: Tensor) -> Batch:
    """A batch with each of `rows` [n] as the only row of a sequence, over the same blocks.

    A row reads the same as before, so its result must be the same too.
    """
    owners = batch.sequence[rows]

    def table(whole: Table) -> Table:
        return Table(whole.blocks[owners], whole.first[owners])

    return replace(
        batch,
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        sequence=torch.arange(len(rows)),
        query_start=torch.arange(len(rows) + 1),
        context_lengths=batch.positions[rows] + 1,
        slots=torch.arange(1, len(rows) + 1),
        image_mask=batch.image_mask[rows],
        context=table(batch.context),
        window=table(batch.window),
    )


def whole_sequences(batch: Batch, order: Sequence[int]) -> tuple[Tensor, Batch]:
    """The rows [n] of some sequences of a batch, in the order given, and a batch of these rows."""
    rows = [
        torch.arange(int(batch.query_start[place]), int(batch.query_start[place + 1]))
        for place in order
    ]
    owners = torch.tensor(order, dtype=torch.int64)
    lengths = torch.tensor([0, *(len(part) for part in rows)])
    taken = torch.cat(rows)
    return taken, replace(
        batch,
        token_ids=batch.token_ids[taken],
        positions=batch.positions[taken],
        sequence=torch.repeat_interleave(torch.arange(len(order)), lengths[1:]),
        query_start=lengths.cumsum(0),
        context_lengths=batch.context_lengths[owners],
        slots=batch.slots[owners],
        image_mask=batch.image_mask[taken],
        context=Table(batch.context.blocks[owners], batch.context.first[owners]),
        window=Table(batch.window.blocks[owners], batch.window.first[owners]),
    )
