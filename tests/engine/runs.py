"""Ways to run tokens through an engine, and the comparison of their logits bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.backend import Batch
from deepinfer.cache import OutOfBlocksError, SequenceCache
from deepinfer.engine import Engine, ModelRunner, SamplingParams
from deepinfer.engine.batch import Rows
from deepinfer.engine.request import FinishReason
from deepinfer.errors import RequestError

Tokens = npt.NDArray[np.int64]


def random_tokens(runner: ModelRunner, count: int, seed: int = 0) -> Tokens:
    """Token ids of the whole vocabulary, repeatable."""
    random = np.random.default_rng(seed)
    return random.integers(0, runner.config.text.vocab_size, count, dtype=np.int64)


@contextmanager
def sequence(runner: ModelRunner) -> Iterator[SequenceCache]:
    """A new sequence, closed at the end."""
    cache = runner.cache.open()
    try:
        yield cache
    finally:
        runner.cache.close(cache)


@contextmanager
def sequences(runner: ModelRunner, count: int) -> Iterator[list[SequenceCache]]:
    """New sequences, closed at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(sequence(runner)) for _ in range(count)]


@dataclass(frozen=True)
class Piece:
    """The rows start..stop-1 of one sequence. tokens: all that are known, at least `stop`."""

    tokens: Tokens
    start: int
    stop: int
    cache: SequenceCache


def step(runner: ModelRunner, pieces: Sequence[Piece], all_rows: bool = False) -> Tensor:
    """One step over pieces of several sequences: logits of their last (or all) rows."""
    logits = launch(runner, pieces, all_rows)
    for piece in pieces:
        runner.cache.commit(piece.cache, piece.stop)
    return logits


def launch(runner: ModelRunner, pieces: Sequence[Piece], all_rows: bool = False) -> Tensor:
    """`step` without its commit: rows that are computed and not final yet.

    An engine's step does the same with the rows that its scheduler chose.
    """
    batch, rows = prepare(runner, pieces)
    return runner.head(runner.run(batch), None if all_rows else rows.last_rows)


def prepare(runner: ModelRunner, pieces: Sequence[Piece]) -> tuple[Batch, Rows]:
    """Reserve the memory of a step, copy what is shared, build its batch from a table."""
    table = runner.new_table()
    for piece in pieces:
        assert piece.start == piece.cache.length, "rows follow what is committed"
        runner.cache.reserve(piece.cache, piece.stop)
        table.enter(
            piece.cache.slot,
            piece.tokens,
            prompt_length=len(piece.tokens),
            max_tokens=1,
            stops_at_eos=False,
            watched=False,
        )
    slots = np.array([piece.cache.slot for piece in pieces])
    starts = np.array([piece.start for piece in pieces])
    stops = np.array([piece.stop for piece in pieces])
    rows = Rows(slots, starts, stops, draws=stops == table.known[slots])
    runner.copy(runner.cache.writable(slots, stops))
    return runner.build_batch(table, rows), rows


def extend(
    runner: ModelRunner,
    cache: SequenceCache,
    tokens: Tokens,
    *,
    all_rows: bool = False,
    chunk_rows: int | None = None,
) -> Tensor:
    """Compute the tokens that a cache does not hold yet: logits of the last one [1, V].

    all_rows: logits of every new token [T, V] instead. chunk_rows: rows per step.
    """
    rows = chunk_rows or runner.sizes.max_num_batched_tokens
    kept: list[Tensor] = []
    while cache.length < len(tokens):
        stop = min(len(tokens), cache.length + rows)
        kept.append(step(runner, [Piece(tokens, cache.length, stop, cache)], all_rows))
    return torch.cat(kept) if all_rows else kept[-1]


class Generated(NamedTuple):
    """One generated token. finish_reason: "" while running, then why it ended."""

    token_id: int
    finish_reason: str


def generate(
    runner: ModelRunner, prompt: Sequence[int] | Tokens, params: SamplingParams
) -> Iterator[Generated]:
    """Tokens of one request of an engine as they are drawn; raises what ended it without one."""
    engine = Engine(runner)
    request = engine.add(prompt, params)
    answer, sent = request.sequences[0], 0
    try:
        while sent < answer.output_length or not answer.finished:
            if sent == answer.output_length:
                engine.step()
                continue
            last = answer.output_length == sent + 1
            yield Generated(int(answer.output[sent]), answer.finish_reason if last else "")
            sent += 1
        if answer.exception is not None:
            raise answer.exception
        if answer.finish_reason == FinishReason.NO_RESOURCES:
            raise OutOfBlocksError(answer.error)
        if answer.error:
            raise RequestError(answer.error)
    finally:
        engine.abort(request.request_id)


def whole(runner: ModelRunner, tokens: Tokens) -> Tensor:
    """Logits of every position [T, V] from one step."""
    return in_pieces(runner, tokens, [])


def in_pieces(runner: ModelRunner, tokens: Tokens, cuts: Iterable[int]) -> Tensor:
    """Logits of every position [T, V] from steps that end before each cut and at the end."""
    return together(runner, [tokens], [cuts])[0]


def together(
    runner: ModelRunner, prompts: Sequence[Tokens], cuts: Sequence[Iterable[int]]
) -> list[Tensor]:
    """`in_pieces` of several prompts: step i runs the i-th piece of each that has one."""
    pieces = [_pieces(len(tokens), own) for tokens, own in zip(prompts, cuts, strict=True)]
    parts: list[list[Tensor]] = [[] for _ in prompts]
    with sequences(runner, len(prompts)) as caches:
        for turn in range(max(map(len, pieces))):
            running = [i for i in range(len(prompts)) if turn < len(pieces[i])]
            rows = [Piece(prompts[i], *pieces[i][turn], caches[i]) for i in running]
            logits = step(runner, rows, all_rows=True)
            counts = [piece.stop - piece.start for piece in rows]
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


def nothing_is_held(runner: ModelRunner) -> bool:
    """Is every block, page and slot of the engine's cache free?"""
    cache = runner.cache
    return cache.blocks.num_used == cache.pages.num_used == cache.slots.num_used == 0
