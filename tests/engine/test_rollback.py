"""Rows that were run and not committed leave no trace: what follows has the bits of a fresh run.

This is what a rejected draft is. The engine here can take back 6 rows; the compressors of ratio 2
keep their pending members in a ring of 2 + 6 - 1 positions for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import ModelRunner
from tests.conftest import BACKTRACK, PAGE_TOKENS, load_runner
from tests.engine.runs import (
    Piece,
    Tokens,
    assert_same_bits,
    launch,
    nothing_is_held,
    random_tokens,
    sequence,
    sequences,
    step,
    together,
    whole,
)

OFFSETS = range(PAGE_TOKENS)
"""Every remainder of a length modulo the page, and so modulo the ratio."""
FOLLOWING = 5


@pytest.fixture(scope="module")
def runner(small_directory: Path) -> Iterator[ModelRunner]:
    with Checkpoint.open(small_directory, progress=False) as checkpoint:
        yield load_runner(checkpoint, "infer", "bf16", sequences=40, backtrack=BACKTRACK)


@pytest.fixture(autouse=True)
def cache_of_this_engine_is_given_back(runner: ModelRunner) -> Iterator[None]:
    yield
    assert nothing_is_held(runner)


def replaced(tokens: Tokens, start: int, seed: int) -> Tokens:
    """The same tokens before `start`, all others different."""
    other = tokens.copy()
    other[start:] = (other[start:] + 1 + seed) % 300
    return other


def speculate(runner: ModelRunner, chunks: list[Piece], accepted: list[int]) -> torch.Tensor:
    """Run the chunks and commit the given number of rows of each."""
    logits = launch(runner, chunks, all_rows=True)
    for chunk, rows in zip(chunks, accepted, strict=True):
        runner.cache.commit(chunk.cache, chunk.start + rows)
    return logits


@pytest.mark.slow
@pytest.mark.parametrize("rows", [BACKTRACK, BACKTRACK + 1])
def test_taking_back_at_every_offset(rows: int, runner: ModelRunner) -> None:
    """All (offset, rows taken back) at once, a sequence each: drafts, then other tokens."""
    cases = [(offset, back) for offset in OFFSETS for back in range(1, BACKTRACK + 1)]
    lengths = [runner.config.text.sliding_window + 1 + offset for offset, _ in cases]
    accepted = [rows - back for _, back in cases]
    drafts = [random_tokens(runner, length + rows + FOLLOWING, seed=1) for length in lengths]
    finals = [
        replaced(draft, length + kept, 1)[: length + kept + FOLLOWING]
        for draft, length, kept in zip(drafts, lengths, accepted, strict=True)
    ]
    wants = together(runner, finals, [[]] * len(cases))
    with sequences(runner, len(cases)) as caches:
        pairs = list(zip(drafts, lengths, caches, strict=True))
        step(runner, [Piece(draft, 0, n, cache) for draft, n, cache in pairs])
        speculate(runner, [Piece(draft, n, n + rows, c) for draft, n, c in pairs], accepted)
        chunks = [
            Piece(final, cache.length, len(final), cache)
            for final, cache in zip(finals, caches, strict=True)
        ]
        parts = torch.split(step(runner, chunks, all_rows=True), FOLLOWING)
    for (offset, back), part, want in zip(cases, parts, wants, strict=True):
        what = f"{rows} rows at offset {offset}, {back} taken back"
        assert_same_bits(part, want[-FOLLOWING:], what)


@pytest.mark.slow
@pytest.mark.parametrize("back", [1, 3, BACKTRACK])
def test_taking_back_in_every_step(back: int, runner: ModelRunner) -> None:
    """Drafts are refused again and again, as speculation with bad drafts does."""
    tokens = random_tokens(runner, 20, seed=2)
    want = whole(runner, tokens)
    got: list[torch.Tensor] = []
    with sequence(runner) as cache:
        while cache.length < len(tokens) - back:
            start = cache.length
            draft = replaced(tokens, start + 1, start)
            logits = speculate(runner, [Piece(draft, start, start + 1 + back, cache)], [1])
            got.append(logits[:1])
    assert_same_bits(torch.cat(got), want[: len(got)], f"{back} refused rows in each step")


@pytest.mark.slow
def test_accepted_counts_of_any_size(runner: ModelRunner) -> None:
    """Sequences accept different numbers of the same step's drafts, from none to all."""
    random = np.random.default_rng(0)
    prompts = [random_tokens(runner, 46, seed=10 + i) for i in range(4)]
    wants = [whole(runner, tokens) for tokens in prompts]
    with sequences(runner, 4) as caches:
        for _ in range(7):
            chunks, accepted = [], []
            for tokens, cache in zip(prompts, caches, strict=True):
                kept = int(random.integers(1, BACKTRACK + 1))
                draft = replaced(tokens, cache.length + kept, 3)
                chunks.append(Piece(draft, cache.length, cache.length + BACKTRACK, cache))
                accepted.append(kept)
            parts = torch.split(speculate(runner, chunks, accepted), BACKTRACK)
            for part, want, chunk, kept in zip(parts, wants, chunks, accepted, strict=True):
                rows = slice(chunk.start, chunk.start + kept)
                assert_same_bits(part[:kept], want[rows], f"{kept} accepted from {chunk.start}")


@pytest.mark.slow
def test_a_launch_that_is_not_committed_runs_again_with_equal_bits(runner: ModelRunner) -> None:
    tokens = random_tokens(runner, 25, seed=3)
    with sequence(runner) as cache:
        step(runner, [Piece(tokens, 0, 19, cache)])
        first = launch(runner, [Piece(tokens, 19, 25, cache)], all_rows=True)
        second = launch(runner, [Piece(tokens, 19, 25, cache)], all_rows=True)
        assert cache.length == 19
    assert_same_bits(second, first, "the same rows again")
    assert_same_bits(first, whole(runner, tokens)[19:], "rows 19 to 24")


@pytest.mark.slow
def test_one_row_may_be_taken_back_by_default(small_runner: ModelRunner) -> None:
    tokens = random_tokens(small_runner, 20, seed=4)
    assert small_runner.layout.backtrack == 1
    for start in (12, 13):
        with sequence(small_runner) as cache:
            step(small_runner, [Piece(tokens, 0, start, cache)])
            launch(small_runner, [Piece(replaced(tokens, start, 0), start, start + 1, cache)])
            got = step(small_runner, [Piece(tokens, start, 20, cache)], all_rows=True)
        assert_same_bits(got, whole(small_runner, tokens)[start:], f"again from {start}")


def test_pages_of_the_window_survive_a_row_that_is_taken_back(runner: ModelRunner) -> None:
    """Rows run ahead free nothing; only what is committed moves the window."""
    window = runner.config.text.sliding_window
    tokens = random_tokens(runner, 40, seed=5)
    with sequence(runner) as cache:
        step(runner, [Piece(tokens, 0, 20, cache)])
        held = list(cache.pages)
        launch(runner, [Piece(tokens, 20, 20 + BACKTRACK, cache)])
        assert cache.pages[: len(held)] == held
        assert cache.first_page == (20 - window + 1) // PAGE_TOKENS
        runner.cache.commit(cache, 21)
        assert cache.first_page == (21 - window + 1) // PAGE_TOKENS


def test_taking_back_what_is_committed_is_refused(runner: ModelRunner) -> None:
    """The pages are gone: an error, not other numbers."""
    tokens = random_tokens(runner, 40, seed=6)
    with sequence(runner) as cache:
        step(runner, [Piece(tokens, 0, 32, cache)])
        with pytest.raises(ValueError, match="from 32, which are final, to 32"):
            runner.cache.commit(cache, 31)
        runner.cache.length[cache.slot] = 28
        with pytest.raises(ValueError, match=r"position 28 sees page 5, but pages before 6"):
            launch(runner, [Piece(tokens, 28, 34, cache)])


def test_committing_more_than_was_run_is_refused(runner: ModelRunner) -> None:
    tokens = random_tokens(runner, 10, seed=7)
    with sequence(runner) as cache:
        launch(runner, [Piece(tokens, 0, 10, cache)])
        with pytest.raises(ValueError, match="13 tokens cannot be committed; allowed: from 0"):
            runner.cache.commit(cache, 13)
