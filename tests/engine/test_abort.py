"""Requests that end early: aborted, finished by a callback, or with a step that raised."""

from __future__ import annotations

import pytest

from deepinfer.engine import SamplingParams
from deepinfer.engine.request import FinishReason, Request, Sequence
from deepinfer.errors import RequestError
from tests.engine.shadow import (
    add,
    assert_alone,
    assert_as_at_the_start,
    drain,
    greedy,
    prompt_of,
    shadow_engine,
)


@pytest.mark.parametrize("state", ["waiting", "prompt", "output", "samples"])
def test_abort(state: str) -> None:
    engine, _ = shadow_engine(max_num_seqs=4, max_num_batched_tokens=8)
    other = engine.add(prompt_of(9), greedy(max_tokens=12))
    request = engine.add(prompt_of(20), SamplingParams(n=3, seed=1, max_tokens=9, ignore_eos=True))
    for _ in range({"waiting": 0, "prompt": 2, "output": 5, "samples": 6}[state]):
        engine.step()
    assert engine.abort(request.request_id)
    assert {s.finish_reason for s in request.sequences} == {FinishReason.ABORT}
    assert not engine.abort(request.request_id)
    assert drain(engine) == [other]
    assert_alone(other, request)
    assert_as_at_the_start(engine)


def test_abort_of_a_preempted_request() -> None:
    engine, _ = shadow_engine(blocks=4)
    first, second = add(engine, 28, 28, max_tokens=10)
    while not second.sequences[0].preemptions:
        engine.step()
    engine.abort(second.request_id)
    assert drain(engine) == [first]
    assert_as_at_the_start(engine)


def test_a_callback_may_abort_itself_and_others() -> None:
    engine, _ = shadow_engine()
    requests: list[Request] = []

    def end(sequence: Sequence) -> None:
        if sequence.output_length == 2:
            for request in requests[:3]:
                engine.abort(request.request_id)

    for i in range(4):
        requests.append(engine.add(prompt_of(5, i), greedy(6), on_token=end if i == 1 else None))
    drain(engine)
    reasons = [request.sequences[0].finish_reason for request in requests]
    assert reasons == [FinishReason.ABORT] * 3 + [FinishReason.LENGTH]
    assert_alone(*requests)
    assert_as_at_the_start(engine)


def test_a_callback_may_finish_its_sequence() -> None:
    engine, _ = shadow_engine()

    def stop(sequence: Sequence) -> None:
        if sequence.output_length == 3:
            sequence.finish(FinishReason.STOP, "end")

    request = engine.add(prompt_of(5), greedy(9), on_token=stop)
    assert drain(engine) == [request]
    sequence = request.sequences[0]
    assert (sequence.output_length, sequence.stop_reason) == (3, "end")
    assert_as_at_the_start(engine)


def test_a_callback_that_raises_ends_its_own_request() -> None:
    engine, _ = shadow_engine()

    def fail(sequence: Sequence) -> None:
        raise KeyError("callback")

    bad = engine.add(prompt_of(5), greedy(5), on_token=fail)
    good = engine.add(prompt_of(6), greedy(5))
    drain(engine)
    assert bad.sequences[0].finish_reason == FinishReason.ERROR
    assert "KeyError" in bad.sequences[0].error
    assert_alone(good)
    assert_as_at_the_start(engine)


def test_a_step_that_raises_ends_what_ran_and_nothing_else() -> None:
    engine, runner = shadow_engine(max_num_seqs=2)
    requests = add(engine, 5, 6, 7)
    engine.step()
    runner.raises = RuntimeError("the device is gone")
    assert engine.step() == requests[:2]
    for request in requests[:2]:
        assert request.sequences[0].finish_reason == FinishReason.ERROR
        assert request.sequences[0].error == "RuntimeError: the device is gone"
    assert drain(engine) == requests[2:]
    assert_alone(*requests)
    assert_as_at_the_start(engine)


def test_an_interrupt_leaves_nothing_allocated() -> None:
    engine, runner = shadow_engine()
    add(engine, 5, 6)
    engine.step()
    runner.raises = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert_as_at_the_start(engine)


def test_a_request_id_is_used_once_at_a_time() -> None:
    engine, _ = shadow_engine()
    engine.add(prompt_of(5), greedy(1), request_id="mine")
    with pytest.raises(RequestError, match="'mine' is in use"):
        engine.add(prompt_of(5), greedy(1), request_id="mine")
    drain(engine)
    engine.add(prompt_of(5), greedy(1), request_id="mine")
    drain(engine)
