"""Ways to run tokens through an engine, and the comparison of their logits bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.cache import SequenceCache
from deepinfer.engine import Chunk, Engine

Tokens = npt.NDArray[np.int64]


def random_tokens(engine: Engine, count: int, seed: int = 0) -> Tokens:
    """Token ids of the whole vocabulary, repeatable."""
    random = np.random.default_rng(seed)
    return random.integers(0, engine.config.text.vocab_size, count, dtype=np.int64)


@contextmanager
def sequence(engine: Engine) -> Iterator[SequenceCache]:
    """A new sequence, closed at the end."""
    cache = engine.cache.open()
    try:
        yield cache
    finally:
        engine.cache.close(cache)


@contextmanager
def sequences(engine: Engine, count: int) -> Iterator[list[SequenceCache]]:
    """New sequences, closed at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(sequence(engine)) for _ in range(count)]


def whole(engine: Engine, tokens: Tokens) -> Tensor:
    """Logits of every position [T, V] from one step."""
    return in_pieces(engine, tokens, [])


def in_pieces(engine: Engine, tokens: Tokens, cuts: Iterable[int]) -> Tensor:
    """Logits of every position [T, V] from steps that end before each cut and at the end."""
    return together(engine, [tokens], [cuts])[0]


def together(
    engine: Engine, prompts: Sequence[Tokens], cuts: Sequence[Iterable[int]]
) -> list[Tensor]:
    """`in_pieces` of several prompts: step i runs the i-th piece of each that has one."""
    pieces = [_pieces(len(tokens), own) for tokens, own in zip(prompts, cuts, strict=True)]
    parts: list[list[Tensor]] = [[] for _ in prompts]
    with sequences(engine, len(prompts)) as caches:
        for turn in range(max(map(len, pieces))):
            running = [i for i in range(len(prompts)) if turn < len(pieces[i])]
            chunks = [Chunk(prompts[i], *pieces[i][turn], caches[i]) for i in running]
            logits = engine.step(chunks, all_rows=True)
            counts = [chunk.stop - chunk.start for chunk in chunks]
            for i, part in zip(running, torch.split(logits, counts), strict=True):
                parts[i].append(part)
    return [torch.cat(own) for own in parts]


def _pieces(length: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    edges = sorted({0, *(cut for cut in cuts if 0 < cut < length), length})
    return list(pairwise(edges))


def assert_same_bits(got: Tensor, want: Tensor, what: str) -> None:
    """Equal and finite logits [T, V]; the message names the rows that differ."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype), what
    assert bool(torch.isfinite(want).all()), f"{what}: logits are not finite"
    differing = torch.nonzero((got != want).any(1)).flatten().tolist()
    assert not differing, f"{what}: rows {differing} of {len(want)} have other bits"


def nothing_is_held(engine: Engine) -> bool:
    """Is every block, page and slot of the engine's cache free?"""
    cache = engine.cache
    return cache.blocks.num_used == cache.pages.num_used == cache.slots.num_used == 0
