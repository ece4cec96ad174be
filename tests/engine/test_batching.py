"""`build_batch`: every field of a ragged batch, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.backend import Batch, Contract, Plan
from deepinfer.engine import Chunk, NgramHistory, build_batch
from deepinfer_reference.backend import ReferenceBackend


def cache(
    slot: int, blocks: list[int], pages: list[int], first_page: int = 0, length: int = 0
) -> SimpleNamespace:
    return SimpleNamespace(
        slot=slot, blocks=blocks, pages=pages, first_page=first_page, length=length
    )


FIRST = Chunk(np.arange(100, 109), 6, 9, cache(4, [7], [3, 9], 1))
SECOND = Chunk(np.arange(200, 240), 33, 34, cache(2, [5, 1, 8], [6, 2, 4], 6, 33))
THIRD = Chunk(np.arange(300, 302), 0, 2, cache(1, [2], [1]))


@pytest.fixture(scope="module")
def operators() -> Contract:
    return ReferenceBackend("cpu")


@pytest.fixture(scope="module")
def batch(operators: Contract) -> Batch:
    return build_batch([FIRST, SECOND, THIRD], operators, NgramHistory(np.arange(1000), 3))


def test_rows(batch: Batch) -> None:
    assert batch.token_ids.tolist() == [106, 107, 108, 233, 300, 301]
    assert batch.positions.tolist() == [6, 7, 8, 33, 0, 1]
    assert batch.sequence.tolist() == [0, 0, 0, 1, 2, 2]
    assert batch.num_rows == 6
    assert batch.image_mask.tolist() == [False] * 6


def test_sequences(batch: Batch) -> None:
    assert batch.query_start.tolist() == [0, 3, 4, 6]
    assert batch.context_lengths.tolist() == [9, 34, 2]
    assert batch.slots.tolist() == [4, 2, 1]
    assert batch.num_sequences == 3
    assert batch.max_context == 34


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
    assert build_batch([THIRD], operators, None).history is None


def test_a_model_without_blocks_has_a_table_all_the_same(operators: Contract) -> None:
    chunk = Chunk(np.arange(3), 0, 3, cache(1, [], [1]))
    assert build_batch([chunk], operators, None).context.blocks.tolist() == [[0]]


def test_no_chunks(operators: Contract) -> None:
    with pytest.raises(ValueError, match="at least one chunk"):
        build_batch([], operators, None)


@pytest.mark.parametrize(("start", "stop"), [(2, 2), (3, 2), (-1, 2), (2, 6)])
def test_chunks_outside_their_tokens(start: int, stop: int, operators: Contract) -> None:
    chunk = Chunk(np.arange(5), start, stop, cache(1, [], []))
    with pytest.raises(ValueError, match=rf"chunk {start}\.\.{stop} of a sequence of 5 tokens"):
        build_batch([chunk], operators, None)


class Planned(Plan):
    """What a backend derived from a batch."""


class PlanningBackend(ReferenceBackend):
    def plan(self, batch: Batch) -> Plan:
        assert batch.num_rows == 4
        return Planned()


def test_a_backend_plans_each_batch_once() -> None:
    batch = build_batch([FIRST, SECOND], PlanningBackend("cpu"), None)
    assert isinstance(batch.plan, Planned)
