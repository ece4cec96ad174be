"""Small pools and batches for operator tests, built from host lists.

Blocks and pages are handed out in a shuffled order and every pool starts with random bytes, so
that a wrong address shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.backend import Batch, CompressorState, Pool, Region, Table
from deepinfer.backend.batch import CONTEXT, WINDOW
from deepinfer.formats import INDEX, MAIN
from deepinfer.formats import WINDOW as WINDOW_FORMAT

PADDING = 32  # bytes between an image and the next block


@dataclass(frozen=True)
class Sizes:
    """Shapes of a small cache. Each of `sequences` sequences has room for `length` tokens."""

    sequences: int = 1
    length: int = 64
    width: int = 64
    index_width: int = 32
    ratio: int = 1
    block_tokens: int = 16
    page_tokens: int = 4
    ring: int = 8


class SmallCache:
    """One KV-source layer's regions, one window layer's region, and a compressor state."""

    def __init__(self, sizes: Sizes, seed: int = 0, state_dtype: torch.dtype = torch.float32):
        self.sizes = sizes
        generator = torch.Generator().manual_seed(seed)
        entries = sizes.block_tokens // sizes.ratio
        index_bytes = INDEX.region_bytes(entries, sizes.index_width)
        main_bytes = MAIN.region_bytes(entries, sizes.width)
        page_bytes = WINDOW_FORMAT.region_bytes(sizes.page_tokens, sizes.width)
        per_sequence = -(-sizes.length // sizes.block_tokens)
        pages = -(-sizes.length // sizes.page_tokens)
        self.context_pool, self.blocks = _pool(
            sizes.sequences, per_sequence, index_bytes + main_bytes, generator
        )
        self.window_pool, self.pages = _pool(sizes.sequences, pages, page_bytes, generator)
        self.index = Region(self.context_pool, CONTEXT, 0, INDEX, sizes.index_width, entries)
        self.main = Region(self.context_pool, CONTEXT, index_bytes, MAIN, sizes.width, entries)
        self.window = Region(
            self.window_pool, WINDOW, 0, WINDOW_FORMAT, sizes.width, sizes.page_tokens
        )
        members = torch.randn(sizes.sequences + 1, sizes.ring, 2, sizes.width, generator=generator)
        self.state = CompressorState(members.to(state_dtype))

    def batch(
        self,
        chunks: Sequence[tuple[int, int, int]],
        padding: int = 0,
        max_context: int | None = None,
        first_page: int = 0,
    ) -> Batch:
        """Rows start..stop-1 of sequences: chunks of (sequence, start, stop), then padding rows.

        first_page: pages before it are left out of the window table.
        """
        positions: list[int] = []
        sequence: list[int] = []
        starts = [0]
        for place, (_, start, stop) in enumerate(chunks):
            positions += range(start, stop)
            sequence += [place] * (stop - start)
            starts.append(len(positions))
        rows = len(positions) + padding
        which = [number for number, _, _ in chunks]
        return Batch(
            token_ids=torch.zeros(rows, dtype=torch.int64),
            positions=torch.tensor(positions + [0] * padding, dtype=torch.int64),
            sequence=torch.tensor(sequence + [-1] * padding, dtype=torch.int64),
            query_start=torch.tensor(starts),
            context_lengths=torch.tensor([stop for _, _, stop in chunks], dtype=torch.int64),
            slots=torch.tensor([number + 1 for number in which], dtype=torch.int64),
            image_mask=torch.zeros(rows, dtype=torch.bool),
            context=Table(self.blocks[which], torch.zeros(len(which), dtype=torch.int64)),
            window=Table(
                self.pages[which, first_page:],
                torch.full((len(which),), first_page, dtype=torch.int64),
            ),
            max_context=max_context or max((stop for _, _, stop in chunks), default=0),
        )


def _pool(
    sequences: int, per_sequence: int, image_bytes: int, generator: torch.Generator
) -> tuple[Pool, torch.Tensor]:
    """A pool with one unused block for each sequence, and the blocks of each sequence."""
    count = sequences * (per_sequence + 1) + 1
    data = torch.randint(
        0, 256, (count, image_bytes + PADDING), dtype=torch.uint8, generator=generator
    )
    order = torch.randperm(count - 1, generator=generator) + 1
    return Pool(data, image_bytes), order[: sequences * per_sequence].view(sequences, -1)
