"""Rows of a sequence have the same bits in every batch of it: chunks, company, lengths, threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Batch, Numerics, Selection, WindowSpan
from deepinfer.formats import Scheme
from tests.reference.compare import assert_same_bits
from tests.reference.pools import Sizes, SmallCache

LENGTH, SEQUENCES, WINDOW = 150, 3, 8
WIDTHS = [1, 3, 4, 5, 37]
DTYPES = [torch.bfloat16, torch.float32, torch.float64]
pytestmark = pytest.mark.usefixtures("restore_threads")

Chunks = Sequence[tuple[int, int, int]]

BATCHES: list[tuple[Chunks, int, int | None]] = [
    ([(2, 0, 150)], 0, None),
    ([(0, 3, 4)], 0, None),
    ([(1, 130, 147)], 0, 150),
    ([(1, 0, 129), (0, 100, 101)], 5, 700),
    ([(2, 149, 150), (0, 0, 40), (1, 64, 80)], 1, None),
    ([(0, 15, 16), (0, 16, 17), (1, 31, 32), (2, 127, 128), (2, 128, 129)], 0, None),
]
"""Chunks, padding rows, and a bound of the context length."""


def assert_invariant(
    cache: SmallCache, run: Callable[[Batch, Callable[[Tensor], Tensor]], Tensor]
) -> None:
    """run(batch, pick) gives [T, ...]; pick takes the batch's rows of [SEQUENCES, LENGTH, ...]."""
    everything = [(number, 0, LENGTH) for number in range(SEQUENCES)]

    def rows_of(chunks: Chunks, padding: int, bound: int | None) -> tuple[Tensor, Tensor]:
        numbers = [n for n, start, stop in chunks for _ in range(start, stop)]
        positions = [p for _, start, stop in chunks for p in range(start, stop)]
        number = torch.tensor(numbers + [0] * padding)
        position = torch.tensor(positions + [0] * padding)
        out = run(cache.batch(chunks, padding, bound), lambda x: x[number, position])
        place = torch.tensor(numbers) * LENGTH + torch.tensor(positions)
        return out[: len(numbers)], place

    torch.set_num_threads(1)
    expected, _ = rows_of(everything, 0, None)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for chunks, padding, bound in BATCHES:
            actual, place = rows_of(chunks, padding, bound)
            assert_same_bits(actual, expected[place][:, ..., : actual.shape[-1]])


@pytest.fixture(scope="module")
def cache() -> SmallCache:
    """All entries of all sequences stored."""
    from deepinfer_reference.backend import ReferenceBackend

    cache = SmallCache(Sizes(sequences=SEQUENCES, length=LENGTH))
    batch = cache.batch([(number, 0, LENGTH) for number in range(SEQUENCES)])
    for region in (cache.window, cache.main, cache.index):
        values = random(region.width).flatten(0, 1)
        ReferenceBackend("cpu").store(values, region, batch.positions, batch)
    return cache


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Random values of every row: [SEQUENCES, LENGTH, *shape]."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(SEQUENCES, LENGTH, *shape, generator=generator, dtype=torch.float64)
    return values.to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", Numerics)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", WIDTHS)
def test_index_scores(reference, cache, heads, dtype, numerics):
    queries, weights = random(heads, 32, dtype=dtype), random(heads, dtype=dtype, seed=1)

    def run(batch, pick):
        activation = reference.quantise(pick(queries), Scheme.MXFP4)
        scores = reference.index_scores(
            activation,
            pick(weights),
            0.1,
            cache.index,
            batch.positions + 1,
            batch.max_context,
            batch,
            numerics,
        )
        return scores[:, :LENGTH]

    assert_invariant(cache, run)


@pytest.mark.slow
@pytest.mark.parametrize("selected", [5, 16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", WIDTHS)
def test_attend(reference, cache, heads, dtype, selected):
    queries, sink = random(heads, 64, dtype=dtype), torch.randn(heads)
    chosen = (random(selected) * 40).abs().int()
    chosen = torch.where(chosen <= torch.arange(LENGTH).view(-1, 1), chosen, -1)

    def run(batch, pick):
        span = WindowSpan((batch.positions - WINDOW + 1).clamp(min=0), batch.positions, WINDOW)
        return reference.attend(
            pick(queries),
            cache.window,
            span,
            cache.main,
            Selection(pick(chosen)),
            sink,
            0.125,
            batch,
        )

    assert_invariant(cache, run)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["main", "index", "window"])
def test_stored_bytes(reference, cache, name, dtype):
    region = getattr(cache, name)
    values = random(region.width, dtype=dtype)

    def run(batch, pick):
        fresh = SmallCache(cache.sizes)
        target = getattr(fresh, name)
        reference.store(pick(values), target, batch.positions, batch)
        return reference.load(target, batch.sequence, batch.positions, batch, torch.float32)

    assert_invariant(cache, run)
