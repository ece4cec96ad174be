"""From sequences to a `Batch`: the host side of one step.

Every array is built once with numpy and moved to the device once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.backend import Batch, Contract, Table
from deepinfer.cache import SequenceCache

Int64Array = npt.NDArray[np.int64]
Prompt = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Chunk:
    """The rows start..stop-1 of one sequence. tokens: all ids known so far, int64 [>= stop]."""

    tokens: Int64Array
    start: int
    stop: int
    cache: SequenceCache


class NgramHistory:
    """Compressed ids of the last n tokens, as the Engram hash takes them.

    token_map [V], integers: raw id to compressed id. order: n.
    """

    def __init__(self, token_map: npt.NDArray[np.integer[Any]], order: int) -> None:
        self._map = token_map.astype(np.int64)
        self._of_recent = np.append(self._map, -1)  # so that id -1 stays -1
        self.order = order

    def of_recent(self, recent: Int64Array) -> Int64Array:
        """History of rows whose last tokens are known: raw ids [T, n], the newest first, or -1."""
        return np.asarray(self._of_recent[recent])

    def rows(self, tokens: Int64Array, start: int, stop: int) -> Int64Array:
        """History of rows start..stop-1: [stop - start, n], -1 before the sequence."""
        first = max(0, start - self.order + 1)
        known = self._map[tokens[first:stop]]
        padded = np.concatenate([np.full(self.order - 1, -1, np.int64), known])
        columns = np.arange(start - first, stop - first)[:, None] + self.order - 1
        return np.asarray(padded[columns - np.arange(self.order)[None, :]])


def build_batch(
    chunks: Sequence[Chunk], operators: Contract, history: NgramHistory | None
) -> Batch:
    """One ragged batch of all chunks, in order. Chunks may be of any length from 1 up."""
    if not chunks:
        raise ValueError("a batch needs at least one chunk")
    for chunk in chunks:
        if not 0 <= chunk.start < chunk.stop <= len(chunk.tokens):
            raise ValueError(
                f"chunk {chunk.start}..{chunk.stop} of a sequence of {len(chunk.tokens)} tokens"
            )
    counts = np.array([chunk.stop - chunk.start for chunk in chunks])
    tensor = _int64(operators)
    rows = None
    if history is not None:
        rows = tensor(np.concatenate([history.rows(c.tokens, c.start, c.stop) for c in chunks]))
    rows_of_step = Batch(
        token_ids=tensor(np.concatenate([c.tokens[c.start : c.stop] for c in chunks])),
        positions=tensor(np.concatenate([np.arange(c.start, c.stop) for c in chunks])),
        sequence=tensor(np.repeat(np.arange(len(chunks)), counts)),
        query_start=tensor(np.concatenate([[0], np.cumsum(counts)])),
        context_lengths=tensor([chunk.stop for chunk in chunks]),
        slots=tensor([chunk.cache.slot for chunk in chunks]),
        image_mask=operators.tensor(np.zeros(int(counts.sum()), dtype=bool), torch.bool),
        context=_table([chunk.cache.blocks for chunk in chunks], [0] * len(chunks), tensor),
        window=_table(
            [chunk.cache.pages for chunk in chunks],
            [chunk.cache.first_page for chunk in chunks],
            tensor,
        ),
        max_context=max(chunk.stop for chunk in chunks),
        history=rows,
    )
    return dataclasses.replace(rows_of_step, plan=operators.plan(rows_of_step))


def _int64(operators: Contract) -> Callable[[Any], Tensor]:
    return lambda values: operators.tensor(values, torch.int64)


def _table(
    blocks: Sequence[Sequence[int]], first: Sequence[int], tensor: Callable[[Any], Tensor]
) -> Table:
    width = max(1, max(len(row) for row in blocks))
    table = np.zeros((len(blocks), width), dtype=np.int64)
    for place, row in enumerate(blocks):
        table[place, : len(row)] = row
    return Table(tensor(table), tensor(list(first)))
