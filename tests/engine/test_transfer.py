"""Blocks, pages and a slot carried to another pool: decoding goes on there with equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deepinfer.backend import Pool
from deepinfer.cache import SequenceCache
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import ModelRunner
from tests.conftest import load_runner
from tests.engine.runs import (
    Piece,
    assert_same_bits,
    nothing_is_held,
    random_tokens,
    sequence,
    step,
    whole,
)


@pytest.fixture(scope="module")
def other(small_directory: Path) -> Iterator[ModelRunner]:
    """Another engine of the small checkpoint, with pools of another size."""
    with Checkpoint.open(small_directory, progress=False) as checkpoint:
        runner = load_runner(checkpoint, "infer", "bf16", sequences=3)
        yield runner
        assert nothing_is_held(runner)


def carry_blocks(
    runner: ModelRunner, other: ModelRunner, source: SequenceCache, to: SequenceCache
) -> None:
    """Everything that is addressed by token: context blocks and window pages."""
    other.cache.reserve(to, source.length)
    gone = source.first_page
    for here, there, from_, into in (
        (runner.pools.context, other.pools.context, source.blocks, to.blocks),
        (runner.pools.window, other.pools.window, source.pages, to.pages[gone:]),
    ):
        copy_images(runner, other, (here, from_), (there, into))
    other.cache.commit(to, source.length)


def copy_images(
    runner: ModelRunner,
    other: ModelRunner,
    source: tuple[Pool, list[int]],
    to: tuple[Pool, list[int]],
) -> None:
    assert len(source[1]) == len(to[1])
    images = runner.operators.export(source[0], torch.tensor(source[1]))
    other.operators.import_(to[0], torch.tensor(to[1]), images)


def carry_slot(
    runner: ModelRunner, other: ModelRunner, source: SequenceCache, to: SequenceCache
) -> None:
    """The pending members of every compressor."""
    for layer in runner.layout.compressor_rings:
        here, there = runner.pools.compressor(layer), other.pools.compressor(layer)
        assert here is not None
        assert there is not None
        there.members[to.slot] = here.members[source.slot]


@pytest.mark.slow
@pytest.mark.parametrize("length", [7, 16, 17, 33])
def test_decode_goes_on_in_another_pool(
    length: int, small_runner: ModelRunner, other: ModelRunner
) -> None:
    tokens = random_tokens(small_runner, length + 4, seed=length)
    want = whole(small_runner, tokens)[length:]
    with sequence(small_runner) as source, sequence(other) as busy, sequence(other) as target:
        step(other, [Piece(random_tokens(other, 21), 0, 21, busy)])  # other numbers are free then
        step(small_runner, [Piece(tokens, 0, length, source)])
        carry_blocks(small_runner, other, source, target)
        carry_slot(small_runner, other, source, target)
        rows = [
            step(other, [Piece(tokens, place, place + 1, target)])
            for place in range(length, length + 4)
        ]
    assert_same_bits(torch.cat(rows), want, f"after {length} tokens in another pool")


def test_whole_groups_need_no_slot(small_runner: ModelRunner, other: ModelRunner) -> None:
    """At an even length nothing is pending in a compressor of ratio 2."""
    tokens = random_tokens(small_runner, 24, seed=1)
    want = whole(small_runner, tokens)[16:]
    with sequence(small_runner) as source, sequence(other) as target:
        step(small_runner, [Piece(tokens, 0, 16, source)])
        carry_blocks(small_runner, other, source, target)
        got = step(other, [Piece(tokens, 16, 24, target)], all_rows=True)
    assert_same_bits(got, want, "after 16 tokens, without the slot")


@pytest.mark.slow
def test_two_sequences_read_the_same_blocks(small_runner: ModelRunner) -> None:
    """A prefix of whole blocks that another sequence left is shared, not copied."""
    prefix = random_tokens(small_runner, 16, seed=2)
    manager = small_runner.cache
    tokens = random_tokens(small_runner, 27, seed=3)
    tokens[:16] = prefix
    want = whole(small_runner, tokens)[16:]
    with sequence(small_runner) as first:
        step(small_runner, [Piece(prefix, 0, 16, first)])
        second = manager.fork(first)
        got = step(small_runner, [Piece(tokens, 16, 27, second)], all_rows=True)
        other_way = random_tokens(small_runner, 27, seed=4)
        other_way[:16] = prefix
        kept = step(small_runner, [Piece(other_way, 16, 27, first)], all_rows=True)
        manager.close(second)
    assert_same_bits(got, want, "after a shared prefix")
    assert_same_bits(kept, whole(small_runner, other_way)[16:], "the sequence that shares it")
