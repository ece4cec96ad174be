"""`Batch` and its tables: logical entry to pool block."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Batch, Pool, Region, Table, block_of
from deepinfer.backend.batch import CONTEXT, WINDOW
from deepinfer.formats import MAIN

TABLE = Table(torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([0, 2]))


def blocks(sequence: list[int], entries: list[int]) -> list[int]:
    pool = Pool(torch.zeros(10, 4, dtype=torch.uint8), 4)
    region = Region(pool, CONTEXT, 0, MAIN, 32, entries=4)
    found: Tensor = block_of(region, TABLE, torch.tensor(sequence), torch.tensor(entries))
    return found.tolist()


def test_entries_go_by_block_size() -> None:
    assert blocks([0, 0, 0, 0], [0, 3, 4, 7]) == [5, 5, 6, 6]


def test_first_block_of_the_table_is_subtracted() -> None:
    assert blocks([1, 1, 1], [8, 12, 19]) == [7, 8, 9]


def test_none_is_the_dummy_block() -> None:
    assert blocks([0, -1, -1], [-1, 0, -1]) == [0, 0, 0]


def test_entries_outside_the_table_touch_no_other_sequence() -> None:
    assert blocks([0, 1, 1], [12, 7, 20]) == [0, 0, 0]


def test_batch_counts_rows_and_sequences() -> None:
    zeros = torch.zeros(5, dtype=torch.int64)
    window = Table(torch.ones(2, 1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    batch = Batch(
        token_ids=zeros,
        positions=zeros,
        sequence=zeros,
        query_start=torch.tensor([0, 4, 5]),
        context_lengths=torch.tensor([4, 1]),
        slots=torch.tensor([1, 2]),
        image_mask=zeros.bool(),
        context=TABLE,
        window=window,
        max_context=4,
    )
    assert (batch.num_rows, batch.num_sequences) == (5, 2)
    assert batch.table(CONTEXT) is TABLE
    assert batch.table(WINDOW) is window


def test_pool_counts_its_blocks() -> None:
    assert Pool(torch.zeros(3, 8, dtype=torch.uint8), 6).num_blocks == 3
