"""`on_logits`, a request that brings its cache, and taps: the engine's own ways to be checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.backend import Batch
from deepinfer.engine import Engine, ModelRunner, SamplingParams
from deepinfer.engine.request import FinishReason, Request, Sequence
from deepinfer.errors import RequestError
from deepinfer.model import LayerWeights, Residual, Selections
from tests.engine.runs import (
    Piece,
    Tokens,
    assert_same_bits,
    nothing_is_held,
    random_tokens,
    step,
    whole,
)
from tests.engine.shadow import (
    assert_alone,
    assert_as_at_the_start,
    drain,
    prompt_of,
    shadow_engine,
)

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture
def engine(small_runner: ModelRunner) -> Iterator[Engine]:
    engine = Engine(small_runner)
    yield engine
    assert not engine.has_work
    assert nothing_is_held(small_runner)


class Capture:
    """What on_logits was called with, by sample."""

    def __init__(self) -> None:
        self.parts: dict[int, list[tuple[int, Tensor]]] = {}

    def __call__(self, sequence: Sequence, first: int, logits: Tensor) -> None:
        self.parts.setdefault(sequence.index, []).append((first, logits))

    def logits(self, index: int = 0) -> Tensor:
        """The rows of a sample, whose positions follow each other without a gap."""
        position = self.parts[index][0][0]
        for first, logits in self.parts[index]:
            assert first == position
            position += len(logits)
        return torch.cat([logits for _, logits in self.parts[index]])


def all_tokens(request: Request) -> Tokens:
    return np.array(request.sequences[0].tokens[:-1], np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 16, 64])
def test_every_row_of_prompt_and_output_once(rows: int, small_runner: ModelRunner) -> None:
    limits = Engine(small_runner).limits
    engine = Engine(small_runner, type(limits)(limits.max_num_seqs, rows))
    other, mine = Capture(), Capture()
    engine.add(random_tokens(small_runner, 5), GREEDY, on_logits=other)
    prompt = random_tokens(small_runner, 41, seed=1)
    request = engine.add(prompt, GREEDY, on_logits=mine)
    engine.drain()
    tokens = all_tokens(request)
    assert len(tokens) == 44
    assert_same_bits(mine.logits(), whole(small_runner, tokens), f"{rows} rows a step")
    assert other.logits().shape == (8, small_runner.config.text.vocab_size)


@pytest.mark.slow
def test_forced_tokens_are_what_later_rows_see(engine: Engine) -> None:
    prompt, forced = random_tokens(engine.runner, 7), random_tokens(engine.runner, 3, seed=2)
    capture = Capture()
    params = SamplingParams(
        temperature=0, max_tokens=4, ignore_eos=True, golden_token_ids=tuple(forced.tolist())
    )
    engine.add(prompt, params, on_logits=capture)
    engine.drain()
    want = whole(engine.runner, np.concatenate([prompt, forced]))
    assert_same_bits(capture.logits(), want, "teacher forcing")


def test_a_preempted_request_gives_each_row_once() -> None:
    engine, _ = shadow_engine(blocks=4)
    captures = [Capture(), Capture()]
    requests = [
        engine.add(prompt_of(28, seed), GREEDY_LONG, on_logits=capture)
        for seed, capture in enumerate(captures)
    ]
    drain(engine)
    assert engine.scheduler.num_preempted
    for request, capture in zip(requests, captures, strict=True):
        assert len(capture.logits()) == len(request.sequences[0].tokens) - 1


GREEDY_LONG = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def test_a_callback_that_raises_costs_its_request_alone(engine: Engine) -> None:
    def broken(sequence: Sequence, first: int, logits: Tensor) -> None:
        raise OSError("the disk is full")

    capture = Capture()
    bad = engine.add(random_tokens(engine.runner, 5), GREEDY, on_logits=broken)
    good = engine.add(random_tokens(engine.runner, 6), GREEDY, on_logits=capture)
    engine.drain()
    assert bad.sequences[0].finish_reason == FinishReason.ERROR
    assert bad.sequences[0].error == "OSError: the disk is full"
    assert good.sequences[0].finish_reason == FinishReason.LENGTH
    assert len(capture.logits()) == 9


@pytest.mark.parametrize("own", [True, False])
def test_a_callback_may_abort(own: bool) -> None:
    """Its own request, or one that runs in the same step: the others go on."""
    engine, _ = shadow_engine(max_num_batched_tokens=8)
    capture = Capture()
    ended = "mine" if own else "other"

    def aborting(sequence: Sequence, first: int, logits: Tensor) -> None:
        engine.abort(ended)

    other = engine.add(prompt_of(3), GREEDY, "other")
    mine = engine.add(prompt_of(12, 1), GREEDY, "mine", on_logits=aborting)
    last = engine.add(prompt_of(4, 2), GREEDY, "last", on_logits=capture)
    drain(engine)
    reasons = {r.request_id: r.sequences[0].finish_reason for r in (other, mine, last)}
    assert reasons.pop(ended) == FinishReason.ABORT
    assert set(reasons.values()) == {FinishReason.LENGTH}
    assert len(capture.logits()) == 7
    assert_as_at_the_start(engine)


@pytest.mark.parametrize(("position", "output"), [(0, 0), (13, 3)])
def test_a_callback_may_finish_its_sequence(position: int, output: int) -> None:
    """In the middle of a prompt or of the output; the request ends in that step."""
    engine, _ = shadow_engine(max_num_batched_tokens=8)

    def finishing(sequence: Sequence, first: int, logits: Tensor) -> None:
        if first >= position:
            sequence.finish(FinishReason.STOP)

    request = engine.add(prompt_of(12), GREEDY, on_logits=finishing)
    other = engine.add(prompt_of(3, 1), GREEDY)
    drain(engine)
    assert request.sequences[0].finish_reason == FinishReason.STOP
    assert request.sequences[0].output_length == output
    assert_alone(other)
    assert_as_at_the_start(engine)


@pytest.mark.parametrize("others", [0, 2])
def test_further_samples_begin_with_the_last_row_of_the_prompt(others: int) -> None:
    """Whether they share the first one's cache or wait for a place and compute the prompt again."""
    engine, _ = shadow_engine(max_num_batched_tokens=8, max_num_seqs=3)
    for seed in range(others):
        engine.add(prompt_of(4, seed), GREEDY_LONG)
    capture = Capture()
    engine.add(prompt_of(20, 3), replace(GREEDY, n=3), on_logits=capture)
    drain(engine)
    assert [capture.parts[index][0][0] for index in range(3)] == [0, 19, 19]
    assert [len(capture.logits(index)) for index in range(3)] == [23, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 16, 17, 33])
def test_a_request_that_brings_its_cache(length: int, engine: Engine) -> None:
    runner = engine.runner
    prompt = random_tokens(runner, length + 5, seed=length)
    cache = runner.cache.open()
    step(runner, [Piece(prompt, 0, length, cache)])
    capture = Capture()
    request = engine.add(prompt, GREEDY, on_logits=capture, cache=cache)
    engine.drain()
    want = whole(runner, all_tokens(request))[length:]
    assert capture.parts[0][0][0] == length
    assert_same_bits(capture.logits(), want, f"after {length} tokens that were there")


def test_a_cache_that_leaves_nothing_to_compute_is_refused(engine: Engine) -> None:
    runner = engine.runner
    prompt = random_tokens(runner, 6)
    cache = runner.cache.open()
    try:
        step(runner, [Piece(prompt, 0, 6, cache)])
        with pytest.raises(RequestError, match="holds 6 tokens of a prompt of 6"):
            engine.add(prompt, GREEDY, cache=cache)
    finally:
        runner.cache.close(cache)


def test_a_cache_is_preempted_before_its_first_row() -> None:
    """Its tokens are computed again, and their logits are not given all the same."""
    engine, runner = shadow_engine(blocks=4)
    first = engine.add(prompt_of(31), replace(GREEDY_LONG, max_tokens=20))
    engine.step()
    prompt = np.array(prompt_of(33, 2))
    cache = runner.cache.open()
    step(runner, [Piece(prompt, 0, 32, cache)])  # type: ignore[arg-type]
    capture = Capture()
    second = engine.add(prompt, GREEDY, on_logits=capture, cache=cache)
    drain(engine)
    assert second.sequences[0].preemptions == 1
    assert capture.parts[0][0][0] == 32
    assert len(capture.logits()) == 4
    assert_alone(first, second)
    assert_as_at_the_start(engine)


def test_a_cache_is_taken_once() -> None:
    engine, runner = shadow_engine()
    cache, closed = runner.cache.open(), runner.cache.open()
    runner.cache.close(closed)
    engine.add(prompt_of(4), GREEDY, cache=cache)
    for taken in (cache, closed):
        with pytest.raises(RequestError, match=f"slot {taken.slot} is closed, or a request has"):
            engine.add(prompt_of(4), GREEDY, cache=taken)
    drain(engine)
    assert_as_at_the_start(engine)


def test_a_request_with_a_cache_cannot_wait() -> None:
    engine, runner = shadow_engine(max_num_seqs=1)
    engine.add(prompt_of(3), GREEDY)
    engine.step()
    cache = runner.cache.open()
    with pytest.raises(RequestError, match="1 sequences run and max_num_seqs is 1"):
        engine.add(prompt_of(4), GREEDY, cache=cache)
    runner.cache.close(cache)
    drain(engine)


class Layers:
    """A layer tap that zeroes the residual in front of one layer."""

    def __init__(self, zeroed: int | None = None) -> None:
        self.zeroed, self.before_, self.after_ = zeroed, [], []

    def before(
        self, layer: LayerWeights, residual: Residual, selections: Selections, batch: Batch
    ) -> Residual:
        self.before_.append(layer.plan.index)
        if layer.plan.index == self.zeroed:
            return Residual(torch.zeros_like(residual.streams), residual.pre)
        return residual

    def after(self, layer: LayerWeights, residual: Residual, batch: Batch) -> None:
        self.after_.append(layer.plan.index)


def captured(engine: Engine, prompt: Tokens) -> Tensor:
    capture = Capture()
    engine.add(prompt, SamplingParams(temperature=0, max_tokens=1), on_logits=capture)
    engine.drain()
    return capture.logits()


@pytest.mark.slow
def test_taps_see_a_step_and_may_replace(engine: Engine) -> None:
    prompt, seen, layers = random_tokens(engine.runner, 9), [], Layers()
    plain = captured(engine, prompt)

    def tap(operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        seen.append(operator)

    with engine.tapped(tap, layers):
        assert_same_bits(captured(engine, prompt), plain, "watched only")
    count = engine.runner.config.text.num_hidden_layers
    assert layers.before_ == layers.after_ == list(range(count))
    assert {"embed", "attend_output", "logits", "process", "sample"} <= set(seen)
    with engine.tapped(tap, Layers(zeroed=1)):
        assert not torch.equal(captured(engine, prompt), plain)
    assert_same_bits(captured(engine, prompt), plain, "after the taps")


def test_taps_within_taps(engine: Engine) -> None:
    """The outer ones stay, and a step that raises within leaves them as they were."""
    prompt, seen, layers = random_tokens(engine.runner, 5), [], Layers()

    def outer(operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        seen.append(operator)

    def broken(operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        if operator == "attend_output":
            raise ValueError("a broken tap")

    with engine.tapped(outer, layers):
        with engine.tapped(broken):
            request = engine.add(prompt, GREEDY)
            engine.drain()
        assert request.sequences[0].error == "ValueError: a broken tap"
        assert (layers.before_, layers.after_) == ([0], [])
        assert seen.count("attend_output") == 1
        captured(engine, prompt)
        assert len(layers.after_) == engine.runner.config.text.num_hidden_layers
    captured(engine, prompt)
    assert seen.count("embed") == 2
