"""`NgramHistory` against a loop over tokens, at the start of a sequence and at chunk edges."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer.engine.batch import NgramHistory
from tests.engine.runs import Tokens

VOCABULARY = 40
TOKEN_MAP = np.random.default_rng(0).permutation(VOCABULARY).astype(np.int32) // 2
TOKENS = np.random.default_rng(1).integers(0, VOCABULARY, 23)


def by_hand(tokens: Tokens, start: int, stop: int, order: int) -> list[list[int]]:
    """Row t, column k: the compressed id of the token k places back, -1 before the sequence."""
    return [
        [int(TOKEN_MAP[tokens[t - k]]) if t >= k else -1 for k in range(order)]
        for t in range(start, stop)
    ]


def history_of(history: NgramHistory, tokens: Tokens, start: int, stop: int) -> Tokens:
    """History of rows start..stop-1 of a sequence in slot 1; slot 0 holds garbage."""
    table = np.full((2, len(tokens)), -(10**6), np.int32)
    table[1] = tokens
    return history.rows(table, np.ones(stop - start, np.int64), np.arange(start, stop))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 7])
def test_every_chunk_of_a_sequence(order: int) -> None:
    history = NgramHistory(TOKEN_MAP, order)
    for start in range(len(TOKENS)):
        for stop in range(start + 1, len(TOKENS) + 1):
            got = history_of(history, TOKENS, start, stop)
            assert got.dtype == np.int64
            assert got.tolist() == by_hand(TOKENS, start, stop, order), (start, stop)


def test_the_first_tokens_have_no_past() -> None:
    got = history_of(NgramHistory(np.arange(VOCABULARY), 4), np.array([7, 8, 9]), 0, 3)
    assert got.tolist() == [[7, -1, -1, -1], [8, 7, -1, -1], [9, 8, 7, -1]]


def test_tokens_after_the_chunk_are_not_looked_at() -> None:
    """They may be anything that is known already, or not written yet."""
    history = NgramHistory(TOKEN_MAP, 4)
    garbage = TOKENS.copy()
    garbage[9:] = -(10**6)
    assert history_of(history, garbage, 5, 9).tolist() == by_hand(TOKENS, 5, 9, 4)


def test_tokens_before_the_history_are_not_looked_at() -> None:
    history = NgramHistory(TOKEN_MAP, 4)
    garbage = TOKENS.copy()
    garbage[:7] = -(10**6)
    assert history_of(history, garbage, 10, 14).tolist() == by_hand(TOKENS, 10, 14, 4)
