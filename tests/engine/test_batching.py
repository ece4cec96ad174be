"""`build_batch`: every field of a ragged batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.backend import Batch, Contract, Plan
from deepinfer.engine.batch import BatchBuilder, NgramHistory, Rows
from deepinfer.engine.sequence_table import SequenceTable
from deepinfer_reference.backend import ReferenceBackend
from tests.engine.runs import Tokens

SLOTS, LENGTH = 6, 48


class Running(NamedTuple):
    """A sequence in a slot: its known tokens, the rows of the step, and its cache memory."""

    slot: int
    tokens: Tokens
    start: int
    stop: int
    blocks: list[int]
    pages: list[int]
    first_page: int = 0


FIRST = Running(4, np.arange(100, 109), 6, 9, [7], [3, 9], 1)
SECOND = Running(2, np.arange(200, 240), 33, 34, [5, 1, 8], [6, 2, 4], 6)
THIRD = Running(1, np.arange(300, 302), 0, 2, [2], [1])


def built(
    running: list[Running], operators: Contract, history: NgramHistory | None = None
) -> Batch:
    """The batch of a step of these sequences, in this order."""
    table = SequenceTable(SLOTS, LENGTH, eos_id=0)
    table.tokens[:] = 999  # what other sequences left behind
    cache = SimpleNamespace(
        block_table=np.zeros((SLOTS, 4), np.int64),
        page_table=np.zeros((SLOTS, 4), np.int64),
        num_blocks=np.zeros(SLOTS, np.int64),
        num_pages=np.zeros(SLOTS, np.int64),
        first_page=np.zeros(SLOTS, np.int64),
    )
    for slot, tokens, _, _, blocks, pages, first_page in running:
        table.tokens[slot, : len(tokens)] = tokens
        table.known[slot] = len(tokens)
        cache.block_table[slot, : len(blocks)] = blocks
        cache.page_table[slot, : len(pages)] = pages
        cache.num_blocks[slot], cache.num_pages[slot] = len(blocks), len(pages)
        cache.first_page[slot] = first_page
    slots, starts, stops = (
        np.array([getattr(one, name) for one in running]) for name in ("slot", "start", "stop")
    )
    rows = Rows(slots, starts, stops, stops == table.known[slots])
    builder = BatchBuilder(operators, history)
    return builder.build_batch(table, rows, cache)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def operators() -> Contract:
    return ReferenceBackend("cpu")


@pytest.fixture(scope="module")
def batch(operators: Contract) -> Batch:
    return built([FIRST, SECOND, THIRD], operators, NgramHistory(np.arange(1000), 3))


def test_rows(batch: Batch) -> None:
    assert batch.token_ids.tolist() == [106, 107, 108, 233, 300, 301]
    assert batch.positions.tolist() == [6, 7, 8, 33, 0, 1]
    assert (batch.sequence.tolist(), batch.num_rows) == ([0, 0, 0, 1, 2, 2], 6)
    assert batch.image_mask.tolist() == [False] * 6


def test_sequences(batch: Batch) -> None:
    assert batch.query_start.tolist() == [0, 3, 4, 6]
    assert (batch.context_lengths.tolist(), batch.slots.tolist()) == ([9, 34, 2], [4, 2, 1])
    assert (batch.num_sequences, batch.max_context) == (3, 34)


def test_tables_are_filled_with_the_dummy_block(batch: Batch) -> None:
    assert batch.context.blocks.tolist() == [[7, 0, 0], [5, 1, 8], [2, 0, 0]]
    assert batch.context.first.tolist() == [0, 0, 0]
    assert batch.window.blocks.tolist() == [[3, 9, 0], [6, 2, 4], [1, 0, 0]]
    assert batch.window.first.tolist() == [1, 6, 0]


def test_history_stays_within_its_sequence(batch: Batch) -> None:
    assert batch.history is not None
    assert batch.history.tolist() == [
        [106, 105, 104],
        [107, 106, 105],
        [108, 107, 106],
        [233, 232, 231],
        [300, -1, -1],
        [301, 300, -1],
    ]


def test_dtypes(batch: Batch) -> None:
    fields = [value for value in vars(batch).values() if isinstance(value, Tensor)]
    for table in (batch.context, batch.window):
        fields += [table.blocks, table.first]
    dtypes = {tensor.dtype for tensor in fields if tensor is not batch.image_mask}
    assert dtypes == {torch.int64}
    assert batch.image_mask.dtype == torch.bool


def test_without_engram_there_is_no_history(operators: Contract) -> None:
    assert built([THIRD], operators).history is None


def test_a_model_without_blocks_has_a_table_all_the_same(operators: Contract) -> None:
    batch = built([Running(1, np.arange(3), 0, 3, [], [1])], operators)
    assert batch.context.blocks.tolist() == [[0]]


def test_decode_rows_are_built_as_chunks_of_one_row_are(operators: Contract) -> None:
    """A step in which every sequence draws from one row takes a shorter way to the same batch."""
    history = NgramHistory(np.arange(1000), 3)
    decoding = [
        FIRST._replace(start=8),
        SECOND._replace(start=39, stop=40),
        THIRD._replace(start=1),
    ]
    unfinished = [one._replace(tokens=np.append(one.tokens, 5)) for one in decoding]
    short, long = built(decoding, operators, history), built(unfinished, operators, history)
    for name, value in vars(short).items():
        if isinstance(value, Tensor):
            assert torch.equal(value, getattr(long, name)), name
    assert short.token_ids.tolist() == [108, 239, 301]
    assert short.query_start.tolist() == [0, 1, 2, 3]


class Planned(Plan):
    """What a backend derived from a batch."""


class PlanningBackend(ReferenceBackend):
    def plan(self, batch: Batch) -> Plan:
        assert batch.num_rows == 4
        return Planned()


def test_a_backend_plans_each_batch_once() -> None:
    batch = built([FIRST, SECOND], PlanningBackend("cpu"))
    assert isinstance(batch.plan, Planned)
