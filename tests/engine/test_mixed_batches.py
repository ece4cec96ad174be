"""What else runs in a step changes no row: other lengths, other order, decode beside prompts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from deepinfer.engine import ModelRunner
from tests.conftest import RunnerOf
from tests.engine.runs import (
    Piece,
    Tokens,
    assert_same_bits,
    random_tokens,
    sequence,
    sequences,
    step,
    together,
    whole,
)
from tests.engine.test_chunks import modes

LENGTHS = [1, 2, 9, 17, 40]


def prompts_of(runner: ModelRunner) -> list[Tokens]:
    return [random_tokens(runner, length, seed=length) for length in LENGTHS]


@pytest.mark.slow
@modes
def test_prompts_of_several_lengths_in_one_step(
    numerics: str, compute: str, small_runners: RunnerOf
) -> None:
    runner = small_runners(numerics, compute)
    prompts = prompts_of(runner)
    for tokens, got in zip(prompts, together(runner, prompts, [[]] * len(prompts)), strict=True):
        assert_same_bits(got, whole(runner, tokens), f"prompt of {len(tokens)} among {LENGTHS}")


@pytest.mark.slow
def test_prompts_of_several_lengths_in_one_step_of_the_bundled_checkpoint(
    bundled_runner: ModelRunner,
) -> None:
    prompts = [random_tokens(bundled_runner, length, seed=length) for length in (1, 33, 15)]
    got = together(bundled_runner, prompts, [[], [20], [7]])
    for tokens, own in zip(prompts, got, strict=True):
        assert_same_bits(own, whole(bundled_runner, tokens), f"prompt of {len(tokens)}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_decode_rows_and_prompt_chunks_in_random_mixes(
    seed: int, small_runner: ModelRunner
) -> None:
    """Every step takes some sequences in any order, some with one row and some with many."""
    random = np.random.default_rng(seed)
    prompts = prompts_of(small_runner)
    parts: list[list[torch.Tensor]] = [[] for _ in prompts]
    history = []
    with sequences(small_runner, len(prompts)) as caches:
        while unfinished := [i for i, cache in enumerate(caches) if cache.length < LENGTHS[i]]:
            running = random.permutation(unfinished)[: random.integers(1, len(unfinished) + 1)]
            chunks = []
            for i in running.tolist():
                start = caches[i].length
                rows = int(random.choice([1, 1, 2, 6, 13]))
                chunks.append(Piece(prompts[i], start, min(start + rows, LENGTHS[i]), caches[i]))
            history.append([(caches.index(c.cache), c.start, c.stop) for c in chunks])
            logits = step(small_runner, chunks, all_rows=True)
            counts = [chunk.stop - chunk.start for chunk in chunks]
            for i, part in zip(running.tolist(), torch.split(logits, counts), strict=True):
                parts[i].append(part)
    for tokens, own in zip(prompts, parts, strict=True):
        want = whole(small_runner, tokens)
        assert_same_bits(torch.cat(own), want, f"prompt of {len(tokens)}; steps {history}")


@pytest.mark.slow
def test_order_of_the_sequences(small_runner: ModelRunner, threads: Callable[[int], None]) -> None:
    prompts = prompts_of(small_runner)
    forward = together(small_runner, prompts, [[]] * len(prompts))
    threads(2)
    backward = together(small_runner, prompts[::-1], [[]] * len(prompts))[::-1]
    for tokens, got, want in zip(prompts, backward, forward, strict=True):
        assert_same_bits(got, want, f"prompt of {len(tokens)} in reverse order with 2 threads")


@pytest.mark.slow
def test_last_rows_are_those_of_all_rows(small_runner: ModelRunner) -> None:
    prompts = prompts_of(small_runner)
    want = torch.stack([rows[-1] for rows in together(small_runner, prompts, [[]] * 5)])
    with sequences(small_runner, len(prompts)) as caches:
        chunks = [Piece(p, 0, len(p), cache) for p, cache in zip(prompts, caches, strict=True)]
        assert_same_bits(step(small_runner, chunks), want, "last rows")


def test_a_slot_and_blocks_that_another_sequence_left(small_runner: ModelRunner) -> None:
    """A sequence reads nothing of what was in its memory before."""
    tokens = random_tokens(small_runner, 19)
    want = whole(small_runner, tokens)
    pools = small_runner.pools
    for pool in (pools.context, pools.window):
        pool.data.fill_(0x7F)  # NaN, as a code of FP8 and as a scale of E4M3
    for layer in small_runner.layout.compressor_rings:
        state = pools.compressor(layer)
        assert state is not None
        state.members.fill_(float("nan"))
    with sequence(small_runner) as cache:
        got = step(small_runner, [Piece(tokens, 0, len(tokens), cache)], all_rows=True)
    assert_same_bits(got, want, "in memory full of NaN")


@pytest.mark.slow
def test_a_sequence_of_nan_spoils_no_other(small_runner: ModelRunner) -> None:
    good, bad = random_tokens(small_runner, 20), random_tokens(small_runner, 23, seed=1)
    want = whole(small_runner, good)[10:]
    with sequences(small_runner, 2) as (first, second):
        chunks = [Piece(good, 0, 10, first), Piece(bad, 0, 15, second)]
        step(small_runner, chunks)
        small_runner.pools.window.data[second.pages] = 0x7F
        chunks = [Piece(bad, 15, 23, second), Piece(good, 10, 20, first)]
        logits = step(small_runner, chunks, all_rows=True)
    assert bool(logits[:8].isnan().all())
    assert_same_bits(logits[8:], want, "beside a sequence whose window is NaN")
