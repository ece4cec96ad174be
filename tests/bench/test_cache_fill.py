"""Generated cache content: as long as it was asked for, in every block, finite, repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from deepinfer.backend import Region
from deepinfer.bench.cache_fill import filled_sequence
from deepinfer.cache import SequenceCache
from deepinfer.engine import ModelRunner
from tests.engine.runs import Piece, assert_same_bits, launch, prepare, random_tokens

LENGTH = 51  # odd: the last token is pending in the compressors of ratio 2


@contextmanager
def filled(runner: ModelRunner, seed: int = 0) -> Iterator[SequenceCache]:
    cache = filled_sequence(runner, LENGTH, seed)
    yield cache
    runner.cache.close(cache)


def row(runner: ModelRunner, cache: SequenceCache) -> Piece:
    return Piece(random_tokens(runner, LENGTH + 1), LENGTH, LENGTH + 1, cache)


def test_sequence_has_its_length_and_content_in_every_block(small_runner: ModelRunner) -> None:
    with filled(small_runner) as cache:
        assert cache.length == LENGTH
        assert len(cache.blocks) == small_runner.layout.blocks_for(LENGTH)
        for pool, numbers in (
            (small_runner.pools.context, cache.blocks),
            (small_runner.pools.window, cache.pages),
        ):
            assert numbers
            assert all(image.any() for image in pool.data[numbers])


def test_every_region_decodes_to_values_of_unit_size(small_runner: ModelRunner) -> None:
    with filled(small_runner) as cache:
        batch, _ = prepare(small_runner, [row(small_runner, cache)])

        def size(region: Region, first: int, last: int) -> float:
            entries = torch.arange(first, last)
            of_first = torch.zeros_like(entries)
            load = small_runner.operators.load
            return float(load(region, of_first, entries, batch, torch.float32).std())

        pools, window = small_runner.pools, small_runner.config.text.sliding_window
        for layer in small_runner.layout.context_layers.values():
            for region in (pools.index(layer.layer), pools.main(layer.layer)):
                assert 0.8 < size(region, 0, LENGTH // layer.ratio) < 1.2
        for place in range(small_runner.layout.window_layers):
            assert 0.8 < size(pools.window_region(place), LENGTH - window, LENGTH) < 1.2


def test_logits_follow_from_the_seed(small_runner: ModelRunner) -> None:
    logits = []
    for turn, seed in enumerate((1, 2, 1)):
        for layer in small_runner.layout.compressor_rings:  # what earlier sequences left
            state = small_runner.pools.compressor(layer)
            assert state is not None
            state.members.fill_(turn)
        with filled(small_runner, seed) as cache:
            logits.append(launch(small_runner, [row(small_runner, cache)]))
    assert_same_bits(logits[0], logits[2], "filled twice")
    assert logits[0].isfinite().all()
    assert not torch.equal(logits[0], logits[1])
