"""Blocks, pages and a slot carried to another pool: decoding goes on there with equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deepinfer.backend import Pool
from deepinfer.cache import SequenceCache
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import Chunk, Engine
from tests.conftest import load_engine
from tests.engine.runs import assert_same_bits, nothing_is_held, random_tokens, sequence, whole


@pytest.fixture(scope="module")
def other(small_directory: Path) -> Iterator[Engine]:
    """Another engine of the small checkpoint, with pools of another size."""
    with Checkpoint.open(small_directory, progress=False) as checkpoint:
        engine = load_engine(checkpoint, "infer", "bf16", sequences=3)
        yield engine
        assert nothing_is_held(engine)


def carry_blocks(engine: Engine, other: Engine, source: SequenceCache, to: SequenceCache) -> None:
    """Everything that is addressed by token: context blocks and window pages."""
    other.cache.reserve(to, source.length)
    gone = source.first_page
    for here, there, from_, into in (
        (engine.pools.context, other.pools.context, source.blocks, to.blocks),
        (engine.pools.window, other.pools.window, source.pages, to.pages[gone:]),
    ):
        copy_images(engine, other, (here, from_), (there, into))
    other.cache.commit(to, source.length)


def copy_images(
    engine: Engine, other: Engine, source: tuple[Pool, list[int]], to: tuple[Pool, list[int]]
) -> None:
    assert len(source[1]) == len(to[1])
    images = engine.operators.export(source[0], torch.tensor(source[1]))
    other.operators.import_(to[0], torch.tensor(to[1]), images)


def carry_slot(engine: Engine, other: Engine, source: SequenceCache, to: SequenceCache) -> None:
    """The pending members of every compressor."""
    for layer in engine.layout.compressor_rings:
        here, there = engine.pools.compressor(layer), other.pools.compressor(layer)
        assert here is not None
        assert there is not None
        there.members[to.slot] = here.members[source.slot]


@pytest.mark.parametrize("length", [7, 16, 17, 33])
def test_decode_goes_on_in_another_pool(length: int, small_engine: Engine, other: Engine) -> None:
    tokens = random_tokens(small_engine, length + 4, seed=length)
    want = whole(small_engine, tokens)[length:]
    with sequence(small_engine) as source, sequence(other) as busy, sequence(other) as target:
        other.step([Chunk(random_tokens(other, 21), 0, 21, busy)])  # other numbers are free then
        small_engine.step([Chunk(tokens, 0, length, source)])
        carry_blocks(small_engine, other, source, target)
        carry_slot(small_engine, other, source, target)
        rows = [
            other.step([Chunk(tokens, place, place + 1, target)])
            for place in range(length, length + 4)
        ]
    assert_same_bits(torch.cat(rows), want, f"after {length} tokens in another pool")


def test_whole_groups_need_no_slot(small_engine: Engine, other: Engine) -> None:
    """At an even length nothing is pending in a compressor of ratio 2."""
    tokens = random_tokens(small_engine, 24, seed=1)
    want = whole(small_engine, tokens)[16:]
    with sequence(small_engine) as source, sequence(other) as target:
        small_engine.step([Chunk(tokens, 0, 16, source)])
        carry_blocks(small_engine, other, source, target)
        got = other.step([Chunk(tokens, 16, 24, target)], all_rows=True)
    assert_same_bits(got, want, "after 16 tokens, without the slot")


def test_two_sequences_read_the_same_blocks(small_engine: Engine) -> None:
    """A prefix of whole blocks that another sequence left is shared, not copied."""
    prefix = random_tokens(small_engine, 16, seed=2)
    manager = small_engine.cache
    tokens = random_tokens(small_engine, 27, seed=3)
    tokens[:16] = prefix
    want = whole(small_engine, tokens)[16:]
    with sequence(small_engine) as first:
        small_engine.step([Chunk(prefix, 0, 16, first)])
        second = manager.fork(first)
        got = small_engine.step([Chunk(tokens, 16, 27, second)], all_rows=True)
        other_way = random_tokens(small_engine, 27, seed=4)
        other_way[:16] = prefix
        kept = small_engine.step([Chunk(other_way, 16, 27, first)], all_rows=True)
        manager.close(second)
    assert_same_bits(got, want, "after a shared prefix")
    assert_same_bits(kept, whole(small_engine, other_way)[16:], "the sequence that shares it")
