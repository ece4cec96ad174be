"""A prompt in one piece, in chunks and token by token gives the same bits.

Edges of the small checkpoint with the layout of the tests: ratio 2, page 4, window 8, block 16,
candidates that restrict from 12 entries on; of the bundled one: window 32 and 64 entries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deepinfer.engine import ModelRunner
from tests.conftest import BLOCK_TOKENS, PAGE_TOKENS, RunnerOf
from tests.engine.runs import assert_same_bits, extend, in_pieces, random_tokens, together, whole

MODES = [("ref", "bf16"), ("infer", "bf16"), ("ref", "fp32"), ("infer", "fp32")]
modes = pytest.mark.parametrize(("numerics", "compute"), MODES)


def edges(runner: ModelRunner) -> list[int]:
    """1, 2, the page, block and window edges, and one to each side of them."""
    window = runner.config.text.sliding_window
    marks = {PAGE_TOKENS, BLOCK_TOKENS, 2 * BLOCK_TOKENS, window, 2 * window}
    return sorted({1, 2, *(mark + side for mark in marks for side in (-1, 0, 1))})


@pytest.mark.slow
@modes
def test_two_chunks_split_at_any_edge(numerics: str, compute: str, small_runners: RunnerOf) -> None:
    runner = small_runners(numerics, compute)
    tokens = random_tokens(runner, 36)
    want = whole(runner, tokens)
    cuts = edges(runner)
    for cut, got in zip(
        cuts, together(runner, [tokens] * len(cuts), [[c] for c in cuts]), strict=True
    ):
        assert_same_bits(got, want, f"split before {cut}")


@pytest.mark.slow
@modes
def test_token_by_token(numerics: str, compute: str, small_runners: RunnerOf) -> None:
    runner = small_runners(numerics, compute)
    tokens = random_tokens(runner, 18, seed=1)
    got = in_pieces(runner, tokens, range(18))
    assert_same_bits(got, whole(runner, tokens), "token by token")


@pytest.mark.slow
def test_equal_chunks_of_many_sizes(small_runner: ModelRunner) -> None:
    tokens = random_tokens(small_runner, 43, seed=2)
    want = whole(small_runner, tokens)
    sizes = [3, 4, 5, 7, 8, 15, 16, 17, 33]
    cuts = [range(0, 43, rows) for rows in sizes]
    for rows, got in zip(sizes, together(small_runner, [tokens] * len(sizes), cuts), strict=True):
        assert_same_bits(got, want, f"{rows} rows per step")


@pytest.mark.slow
def test_random_cuts(small_runner: ModelRunner) -> None:
    tokens = random_tokens(small_runner, 90, seed=3)
    want = whole(small_runner, tokens)
    random = np.random.default_rng(3)
    cuts = [random.choice(np.arange(1, 90), 6, replace=False).tolist() for _ in range(6)]
    for own, got in zip(cuts, together(small_runner, [tokens] * len(cuts), cuts), strict=True):
        assert_same_bits(got, want, f"cuts {sorted(own)}")


@pytest.mark.slow
@modes
def test_bundled_checkpoint_cut_at_its_edges(
    numerics: str, compute: str, bundled_runners: RunnerOf
) -> None:
    runner = bundled_runners(numerics, compute)
    tokens = random_tokens(runner, 70)
    cuts = [1, 2, PAGE_TOKENS + 1, BLOCK_TOKENS, 31, 33, 65]
    assert_same_bits(in_pieces(runner, tokens, cuts), whole(runner, tokens), f"cuts {cuts}")


@pytest.mark.slow
def test_bundled_checkpoint_token_by_token_over_its_window(bundled_runner: ModelRunner) -> None:
    tokens = random_tokens(bundled_runner, 37, seed=1)
    got = in_pieces(bundled_runner, tokens, range(29, 37))
    assert_same_bits(got, whole(bundled_runner, tokens), "token by token from 29 on")


@pytest.mark.slow
def test_number_of_threads_changes_nothing(
    small_runner: ModelRunner, threads: Callable[[int], None]
) -> None:
    tokens = random_tokens(small_runner, 40, seed=4)
    want = whole(small_runner, tokens)
    threads(2)
    got = in_pieces(small_runner, tokens, [7, 28, 38, 39])
    assert_same_bits(got, want, "in pieces with 2 threads, in one piece with 1")


@pytest.mark.slow
def test_bundled_checkpoint_with_two_threads(
    bundled_runner: ModelRunner, threads: Callable[[int], None]
) -> None:
    tokens = random_tokens(bundled_runner, 40, seed=5)
    want = whole(bundled_runner, tokens)
    threads(2)
    got = in_pieces(bundled_runner, tokens, [23])
    assert_same_bits(got, want, "2 chunks with 2 threads, in one piece with 1")


def test_extend_returns_the_last_row_of_whole_logits(small_runner: ModelRunner) -> None:
    tokens = random_tokens(small_runner, 21, seed=6)
    cache = small_runner.cache.open()
    try:
        got = extend(small_runner, cache, tokens, chunk_rows=8)
    finally:
        small_runner.cache.close(cache)
    assert_same_bits(got, whole(small_runner, tokens)[-1:], "last row")


@pytest.mark.slow
@pytest.mark.parametrize("runners", ["small_runners", "bundled_runners"])
def test_float64_decode_equals_the_whole_forward(
    runners: str, request: pytest.FixtureRequest
) -> None:
    runner_of: RunnerOf = request.getfixturevalue(runners)
    runner = runner_of("ref", "fp64")
    tokens = random_tokens(runner, 38)
    want = whole(runner, tokens)
    got = in_pieces(runner, tokens, [17, *range(33, 38)])
    assert float((got - want).abs().max()) <= 1e-12
    assert_same_bits(got, want, "chunks of 17 and 16, then token by token, in float64")
