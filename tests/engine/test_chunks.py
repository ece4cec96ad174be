"""A prompt in one piece, in chunks and token by token gives the same bits.

Edges of the small checkpoint with the layout of the tests: ratio 2, page 4, window 8, block 16,
candidates that restrict from 12 entries on; of the bundled one: window 32 and 64 entries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deepinfer.engine import Engine
from tests.conftest import BLOCK_TOKENS, PAGE_TOKENS, EngineOf
from tests.engine.runs import assert_same_bits, in_pieces, random_tokens, together, whole

MODES = [("ref", "bf16"), ("infer", "bf16"), ("ref", "fp32"), ("infer", "fp32")]
modes = pytest.mark.parametrize(("numerics", "compute"), MODES)


def edges(engine: Engine) -> list[int]:
    """1, 2, the page, block and window edges, and one to each side of them."""
    window = engine.config.text.sliding_window
    marks = {PAGE_TOKENS, BLOCK_TOKENS, 2 * BLOCK_TOKENS, window, 2 * window}
    return sorted({1, 2, *(mark + side for mark in marks for side in (-1, 0, 1))})


@modes
def test_two_chunks_split_at_any_edge(numerics: str, compute: str, small_engines: EngineOf) -> None:
    engine = small_engines(numerics, compute)
    tokens = random_tokens(engine, 36)
    want = whole(engine, tokens)
    cuts = edges(engine)
    for cut, got in zip(
        cuts, together(engine, [tokens] * len(cuts), [[c] for c in cuts]), strict=True
    ):
        assert_same_bits(got, want, f"split before {cut}")


@modes
def test_token_by_token(numerics: str, compute: str, small_engines: EngineOf) -> None:
    engine = small_engines(numerics, compute)
    tokens = random_tokens(engine, 18, seed=1)
    got = in_pieces(engine, tokens, range(18))
    assert_same_bits(got, whole(engine, tokens), "token by token")


def test_equal_chunks_of_many_sizes(small_engine: Engine) -> None:
    tokens = random_tokens(small_engine, 43, seed=2)
    want = whole(small_engine, tokens)
    sizes = [3, 4, 5, 7, 8, 15, 16, 17, 33]
    cuts = [range(0, 43, rows) for rows in sizes]
    for rows, got in zip(sizes, together(small_engine, [tokens] * len(sizes), cuts), strict=True):
        assert_same_bits(got, want, f"{rows} rows per step")


def test_random_cuts(small_engine: Engine) -> None:
    tokens = random_tokens(small_engine, 90, seed=3)
    want = whole(small_engine, tokens)
    random = np.random.default_rng(3)
    cuts = [random.choice(np.arange(1, 90), 6, replace=False).tolist() for _ in range(6)]
    for own, got in zip(cuts, together(small_engine, [tokens] * len(cuts), cuts), strict=True):
        assert_same_bits(got, want, f"cuts {sorted(own)}")


@modes
def test_bundled_checkpoint_cut_at_its_edges(
    numerics: str, compute: str, bundled_engines: EngineOf
) -> None:
    engine = bundled_engines(numerics, compute)
    tokens = random_tokens(engine, 70)
    cuts = [1, 2, PAGE_TOKENS + 1, BLOCK_TOKENS, 31, 33, 65]
    assert_same_bits(in_pieces(engine, tokens, cuts), whole(engine, tokens), f"cuts {cuts}")


def test_bundled_checkpoint_token_by_token_over_its_window(bundled_engine: Engine) -> None:
    tokens = random_tokens(bundled_engine, 37, seed=1)
    got = in_pieces(bundled_engine, tokens, range(29, 37))
    assert_same_bits(got, whole(bundled_engine, tokens), "token by token from 29 on")


def test_number_of_threads_changes_nothing(
    small_engine: Engine, threads: Callable[[int], None]
) -> None:
    tokens = random_tokens(small_engine, 40, seed=4)
    want = whole(small_engine, tokens)
    threads(2)
    got = in_pieces(small_engine, tokens, [7, 28, 38, 39])
    assert_same_bits(got, want, "in pieces with 2 threads, in one piece with 1")


def test_bundled_checkpoint_with_two_threads(
    bundled_engine: Engine, threads: Callable[[int], None]
) -> None:
    tokens = random_tokens(bundled_engine, 40, seed=5)
    want = whole(bundled_engine, tokens)
    threads(2)
    got = in_pieces(bundled_engine, tokens, [23])
    assert_same_bits(got, want, "2 chunks with 2 threads, in one piece with 1")


def test_extend_returns_the_last_row_of_whole_logits(small_engine: Engine) -> None:
    tokens = random_tokens(small_engine, 21, seed=6)
    cache = small_engine.cache.open()
    try:
        got = small_engine.extend(cache, tokens, chunk_rows=8)
    finally:
        small_engine.cache.close(cache)
    assert_same_bits(got, whole(small_engine, tokens)[-1:], "last row")


@pytest.mark.parametrize("engines", ["small_engines", "bundled_engines"])
def test_float64_decode_equals_the_whole_forward(
    engines: str, request: pytest.FixtureRequest
) -> None:
    engine_of: EngineOf = request.getfixturevalue(engines)
    engine = engine_of("ref", "fp64")
    tokens = random_tokens(engine, 38)
    want = whole(engine, tokens)
    got = in_pieces(engine, tokens, [17, *range(33, 38)])
    assert float((got - want).abs().max()) <= 1e-12
    assert_same_bits(got, want, "chunks of 17 and 16, then token by token, in float64")
