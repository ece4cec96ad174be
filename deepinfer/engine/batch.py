"""`BatchBuilder`: makes the `Batch` of a step from the rows that were scheduled.

Every array is built once with numpy and moved to the device once. Chunks of prompts, decode rows
and rows that are computed again after a preemption are all treated alike.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.arrays import Int64Array
from deepinfer.backend import Batch, Contract, Table
from deepinfer.cache import CacheManager
from deepinfer.engine.sequence_table import SequenceTable


@dataclass(frozen=True)
class Rows:
    """The rows of one step.

    The sequence in slots[i] has the rows of its positions starts[i]..stops[i]-1. slots, starts,
    stops [n] int64. draws [n] bool: a token is drawn from the last row of the sequence.
    """

    slots: Int64Array
    starts: Int64Array
    stops: Int64Array
    draws: npt.NDArray[np.bool_]

    @cached_property
    def counts(self) -> Int64Array:
        """The number of rows of each sequence [n]."""
        return self.stops - self.starts

    @cached_property
    def total(self) -> int:
        """The number of rows of the step."""
        return int(self.counts.sum())

    @cached_property
    def all_draw(self) -> bool:
        """Whether every sequence draws a token."""
        return bool(self.draws.all())

    @cached_property
    def only_draws(self) -> bool:
        """Whether every sequence has exactly one row and draws a token from it."""
        return self.all_draw and self.total == len(self.slots)

    @cached_property
    def drawing_slots(self) -> Int64Array:
        """The slots of the sequences that draw a token."""
        return self.slots if self.all_draw else self.slots[self.draws]

    @cached_property
    def last_rows(self) -> Int64Array:
        """The row number, within the batch, of each sequence's last row [n]."""
        return np.asarray(np.cumsum(self.counts) - 1)

    @cached_property
    def drawing_rows(self) -> Int64Array:
        """The row numbers, within the batch, from which a token is drawn."""
        return self.last_rows if self.all_draw else self.last_rows[self.draws]


class NgramHistory:
    """Gives each row the compressed ids of its last tokens, which the Engram hash takes.

    token_map [V], integers: the compressed id of every token id. order: how many tokens a row gets,
    its own included.
    """

    def __init__(self, token_map: npt.NDArray[np.integer[Any]], order: int) -> None:
        self._map = token_map.astype(np.int64)
        self.order = order

    def rows(self, tokens: npt.NDArray[np.int32], slots: Int64Array, at: Int64Array) -> Int64Array:
        """The history of each row [T, order]: newest token first, -1 before the sequence's start.

        tokens [S, L]: the tokens of the sequence table. slots, at [T]: slot and position of a row.
        """
        places = at[:, None] - np.arange(self.order)
        if not len(at) or at.min() >= self.order - 1:
            return np.asarray(self._map[tokens[slots[:, None], places]])
        before = places < 0
        history = np.asarray(self._map[tokens[slots[:, None], places.clip(0)]])
        history[before] = -1
        return history


class BatchBuilder:
    """Builds the batches of one model.

    history: None for a model without Engram.
    """

    def __init__(self, operators: Contract, history: NgramHistory | None) -> None:
        self._operators = operators
        self._history = history
        self._decode = _DecodeTensors()

    def build_batch(self, table: SequenceTable, rows: Rows, cache: CacheManager) -> Batch:
        """The batch of a step, for whose rows the cache has reserved memory."""
        slots = rows.slots
        if rows.only_draws:
            positions, row_slots = rows.starts, slots
            tensors = self._decode.of(len(slots), self._operators)
        else:
            sequence = np.repeat(np.arange(len(slots)), rows.counts)
            before = rows.last_rows + 1 - rows.counts  # where the rows of each sequence begin
            positions = np.arange(rows.total) + (rows.starts - before)[sequence]
            row_slots = slots[sequence]
            tensors = _RowTensors.of(rows.counts, self._operators)
        history = None
        if self._history is not None:
            history = self._tensor(self._history.rows(table.tokens, row_slots, positions))
        blocks = max(1, int(cache.num_blocks[slots].max()))
        pages = max(1, int(cache.num_pages[slots].max()))
        batch = Batch(
            token_ids=self._tensor(table.tokens[row_slots, positions]),
            positions=self._tensor(positions),
            sequence=tensors.sequence,
            query_start=tensors.query_start,
            context_lengths=self._tensor(rows.stops),
            slots=self._tensor(slots),
            image_mask=tensors.image_mask,
            context=Table(self._tensor(cache.block_table[:, :blocks][slots]), tensors.zeros),
            window=Table(
                self._tensor(cache.page_table[:, :pages][slots]),
                self._tensor(cache.first_page[slots]),
            ),
            max_context=int(rows.stops.max()),
            history=history,
        )
        return dataclasses.replace(batch, plan=self._operators.plan(batch))

    def _tensor(self, values: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
        return self._operators.tensor(values, torch.int64)


class _RowTensors(NamedTuple):
    """The tensors of a batch that depend only on how many rows each sequence has."""

    sequence: torch.Tensor
    query_start: torch.Tensor
    image_mask: torch.Tensor
    zeros: torch.Tensor

    @classmethod
    def of(cls, counts: Int64Array, operators: Contract) -> _RowTensors:
        sequence = np.repeat(np.arange(len(counts)), counts)
        return cls(
            operators.tensor(sequence, torch.int64),
            operators.tensor(np.concatenate([[0], np.cumsum(counts)]), torch.int64),
            operators.tensor(np.zeros(len(sequence), bool), torch.bool),
            operators.tensor(np.zeros(len(counts), np.int64), torch.int64),
        )


class _DecodeTensors:
    """Keeps the row tensors of a step with one row per sequence for the next step like it."""

    def __init__(self) -> None:
        self._count = -1
        self._rows: _RowTensors | None = None

    def of(self, count: int, operators: Contract) -> _RowTensors:
        """The row tensors of `count` sequences; those of the last call if `count` is the same."""
        if self._rows is None or count != self._count:
            self._rows = _RowTensors.of(np.ones(count, np.int64), operators)
            self._count = count
        return self._rows
