"""The table of running sequences at its edges: released sizes, last positions, largest ids."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np

from deepinfer.engine.sequence_table import SequenceTable
from tests.cache.layouts import released_text

EOS = 1


def enter(table: SequenceTable, slot: int, length: int, max_tokens: int = 4) -> None:
    table.enter(
        slot,
        np.arange(length),
        prompt_length=length,
        max_tokens=max_tokens,
        stops_at_eos=True,
        watched=False,
    )


def used_memory() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_short_sequences_of_a_long_model_take_little_memory() -> None:
    """256 of 1,048,576 positions: a gibibyte of tokens, of which short ones touch a page each."""
    before = used_memory()
    table = SequenceTable(257, 2**20, EOS)
    for slot in range(1, 257):
        enter(table, slot, 100)
    assert not table.append(np.arange(1, 257), np.full(256, 7)).any()
    assert used_memory() - before < 64 * 2**20


def test_the_last_position_and_the_largest_id() -> None:
    table, last = SequenceTable(3, 40, EOS), released_text().vocab_size - 1
    enter(table, 1, 39)
    enter(table, 2, 38)
    assert table.append(np.array([1, 2]), np.array([last, last])).tolist() == [True, False]
    assert table.tokens_of(1).tolist() == [*range(39), last]
    assert table.append(np.array([2]), np.array([EOS])).tolist() == [True]
    assert table.tokens_of(2).tolist() == [*range(38), last, EOS]
    assert not table.tokens[0].any()
