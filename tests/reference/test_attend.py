"""Attention over window and selected entries: the formula, empty rows, sinks, NaN, large values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Batch, Selection, WindowSpan
from tests.reference.compare import assert_close, assert_same_bits
from tests.reference.pools import Sizes, SmallCache

LENGTH, WIDTH, HEADS, WINDOW = 50, 64, 3, 8
SCALE = WIDTH**-0.5


class Case:
    """A sequence with all its entries stored, and what attention reads of it."""

    def __init__(self, reference, dtype: torch.dtype = torch.float32, size: float = 1.0):
        self.reference, self.dtype = reference, dtype
        self.cache = SmallCache(Sizes(sequences=2, length=LENGTH, width=WIDTH))
        self.generator = torch.Generator().manual_seed(0)
        batch = self.cache.batch([(0, 0, LENGTH), (1, 0, LENGTH)])
        for region in (self.cache.window, self.cache.main):
            reference.store(self.random(2 * LENGTH, WIDTH) * size, region, batch.positions, batch)
        self.sink = self.random(HEADS).float()

    def random(self, *shape: int) -> Tensor:
        values = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return values.to(self.dtype)

    def span(self, batch: Batch) -> WindowSpan:
        first = (batch.positions - WINDOW + 1).clamp(min=0)
        return WindowSpan(first, batch.positions, WINDOW)

    def attend(self, queries, batch, selected=None, span=None, sink=None) -> Tensor:
        main = None if selected is None else self.cache.main
        chosen = None if selected is None else Selection(selected.to(torch.int32))
        span = span or self.span(batch)
        sink = self.sink if sink is None else sink
        return self.reference.attend(
            queries, self.cache.window, span, main, chosen, sink, SCALE, batch
        )

    def entries(self, name: str, sequence: int, numbers: list[int]) -> Tensor:
        batch = self.cache.batch([(0, 0, 1), (1, 0, 1)])
        region = getattr(self.cache, name)
        place = torch.full((len(numbers),), sequence)
        return self.reference.load(region, place, torch.tensor(numbers), batch, torch.float64)


def formula(queries: Tensor, keys: Tensor, sink: Tensor) -> Tensor:
    """One row in float64: queries [A, D], keys [K, D], sink [A] -> [A, D]."""
    logits = torch.cat((queries.double() @ keys.T * SCALE, sink.double().unsqueeze(-1)), -1)
    return logits.softmax(-1)[:, :-1] @ keys


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("position", [0, 3, 4, 7, 8, 9, 31, 32, LENGTH - 1])
def test_a_row_follows_the_formula(reference, position, dtype):
    case = Case(reference, dtype)
    batch = case.cache.batch([(1, position, position + 1)])
    chosen = sorted({0, position // 2, position})
    selected = torch.tensor([chosen + [-1] * (5 - len(chosen))])
    queries = case.random(1, HEADS, WIDTH)
    window = case.entries("window", 1, list(range(max(0, position - WINDOW + 1), position + 1)))
    main = case.entries("main", 1, chosen)
    expected = formula(queries[0], torch.cat((window, main)), case.sink)
    actual = case.attend(queries, batch, selected)
    assert_close(actual[0], expected.to(dtype))


def test_a_window_layer_has_no_selection(reference):
    case = Case(reference)
    batch = case.cache.batch([(0, 20, 21)])
    queries = case.random(1, HEADS, WIDTH)
    expected = formula(queries[0], case.entries("window", 0, list(range(13, 21))), case.sink)
    assert_close(case.attend(queries, batch)[0], expected.float())


def test_a_draft_block_sees_to_its_end(reference):
    case = Case(reference)
    batch = case.cache.batch([(0, 20, 23)])
    first = torch.tensor([13, 13, 13])
    span = WindowSpan(first, torch.tensor([22, 22, 22]), WINDOW + 2)
    queries = case.random(3, HEADS, WIDTH)
    keys = case.entries("window", 0, list(range(13, 23)))
    expected = torch.stack([formula(q, keys, case.sink) for q in queries])
    assert_close(case.attend(queries, batch, span=span), expected.float())


@pytest.mark.parametrize("sink", [0.0, -torch.inf, 1e30])
def test_a_row_without_keys_gives_zeros(reference, sink):
    case = Case(reference)
    batch = case.cache.batch([(0, 20, 22)])
    nothing = WindowSpan(torch.tensor([21, 20]), torch.tensor([20, 20]), WINDOW)
    selected = torch.full((2, 4), -1)
    queries = case.random(2, HEADS, WIDTH)
    out = case.attend(queries, batch, selected, nothing, torch.full((HEADS,), sink))
    assert torch.equal(out[0], torch.zeros(HEADS, WIDTH))
    assert sink > 0 or out[1].abs().max() > 0


def test_padding_rows_give_zeros(reference):
    case = Case(reference)
    batch = case.cache.batch([(0, 20, 21)], padding=2)
    out = case.attend(case.random(3, HEADS, WIDTH), batch, torch.tensor([[3, 4]] * 3))
    assert torch.equal(out[1:], torch.zeros(2, HEADS, WIDTH))


@pytest.mark.parametrize("sink", [-1e30, -200.0, 80.0, 120.0, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_sinks_follow_the_formula(reference, sink, dtype):
    case = Case(reference, dtype)
    batch = case.cache.batch([(0, 20, 21)])
    queries = case.random(1, HEADS, WIDTH)
    sinks = torch.full((HEADS,), sink)
    expected = formula(queries[0], case.entries("window", 0, list(range(13, 21))), sinks)
    actual = case.attend(queries, batch, sink=sinks)[0]
    assert actual.isfinite().all()
    tiny = torch.finfo(torch.float32).tiny
    assert_close(actual.float() + tiny, expected.float() + tiny)


def test_large_magnitudes_stay_finite(reference):
    case = Case(reference, size=400.0)
    batch = case.cache.batch([(0, 20, 21)])
    queries = case.random(1, HEADS, WIDTH) * 1e6
    expected = formula(queries[0], case.entries("window", 0, list(range(13, 21))), case.sink)
    actual = case.attend(queries, batch)[0]
    assert_close(actual, expected.float())


def test_nan_in_a_query_stays_in_its_row_and_head(reference):
    case = Case(reference)
    batch = case.cache.batch([(0, 10, 30)])
    queries = case.random(20, HEADS, WIDTH)
    expected = case.attend(queries, batch)
    queries[4, 1, 0] = torch.nan
    actual = case.attend(queries, batch)
    assert actual[4, 1].isnan().all()
    actual[4, 1] = expected[4, 1] = 0
    assert_same_bits(actual, expected)


def test_nan_in_an_entry_reaches_only_rows_that_see_it(reference):
    case = Case(reference)
    batch = case.cache.batch([(0, 5, 30)])
    queries = case.random(25, HEADS, WIDTH)
    expected = case.attend(queries, batch)
    spoiled = case.cache.batch([(0, 12, 13)])
    case.reference.store(
        torch.full((1, WIDTH), torch.nan), case.cache.window, spoiled.positions, spoiled
    )
    actual = case.attend(queries, batch)
    seen = (batch.positions >= 12) & (batch.positions < 12 + WINDOW)
    assert actual[seen].isnan().all()
    assert_same_bits(actual[~seen], expected[~seen])


def test_bytes_of_block_0_and_of_free_blocks_never_show(reference):
    case = Case(reference)
    batch = case.cache.batch([(0, 2, 30)], padding=2)
    queries = case.random(30, HEADS, WIDTH)
    selected = torch.arange(30).unsqueeze(-1) - 5
    selected = torch.where(selected < 0, -1, selected)
    expected = case.attend(queries, batch, selected)
    for pool, table in (
        (case.cache.window_pool, case.cache.pages),
        (case.cache.context_pool, case.cache.blocks),
    ):
        free = torch.ones(pool.num_blocks, dtype=torch.bool)
        free[table.flatten()] = False
        pool.data[free] = 0x7F
    assert_same_bits(case.attend(queries, batch, selected), expected)


def test_no_rows(reference):
    case = Case(reference)
    batch = case.cache.batch([])
    empty = torch.zeros(0, dtype=torch.int64)
    span = WindowSpan(empty, empty, WINDOW)
    out = case.attend(torch.zeros(0, HEADS, WIDTH), batch, torch.zeros(0, 4), span)
    assert out.shape == (0, HEADS, WIDTH)
