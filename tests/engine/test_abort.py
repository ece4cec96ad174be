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
    shadow_core,
)


@pytest.mark.parametrize("state", ["waiting", "prompt", "output", "samples"])
def test_abort(state: str) -> None:
    core, _ = shadow_core(max_num_seqs=4, max_num_batched_tokens=8)
    other = core.add(prompt_of(9), greedy(max_tokens=12))
    request = core.add(prompt_of(20), SamplingParams(n=3, seed=1, max_tokens=9, ignore_eos=True))
    for _ in range({"waiting": 0, "prompt": 2, "output": 5, "samples": 6}[state]):
        core.step()
    assert core.abort(request.request_id)
    assert {s.finish_reason for s in request.sequences} == {FinishReason.ABORT}
    assert not core.abort(request.request_id)
    assert drain(core) == [other]
    assert_alone(other, request)
    assert_as_at_the_start(core)


def test_abort_of_a_preempted_request() -> None:
    core, _ = shadow_core(blocks=4)
    first, second = add(core, 28, 28, max_tokens=10)
    while not second.sequences[0].preemptions:
        core.step()
    core.abort(second.request_id)
    assert drain(core) == [first]
    assert_as_at_the_start(core)


def test_a_callback_may_abort_itself_and_others() -> None:
    core, _ = shadow_core()
    requests: list[Request] = []

    def end(sequence: Sequence) -> None:
        if sequence.output_length == 2:
            for request in requests[:3]:
                core.abort(request.request_id)

    for i in range(4):
        requests.append(core.add(prompt_of(5, i), greedy(6), on_token=end if i == 1 else None))
    drain(core)
    reasons = [request.sequences[0].finish_reason for request in requests]
    assert reasons == [FinishReason.ABORT] * 3 + [FinishReason.LENGTH]
    assert_alone(*requests)
    assert_as_at_the_start(core)


def test_a_callback_may_finish_its_sequence() -> None:
    core, _ = shadow_core()

    def stop(sequence: Sequence) -> None:
        if sequence.output_length == 3:
            sequence.finish(FinishReason.STOP, "end")

    request = core.add(prompt_of(5), greedy(9), on_token=stop)
    assert drain(core) == [request]
    sequence = request.sequences[0]
    assert (sequence.output_length, sequence.stop_reason) == (3, "end")
    assert_as_at_the_start(core)


def test_a_callback_that_raises_ends_its_own_request() -> None:
    core, _ = shadow_core()

    def fail(sequence: Sequence) -> None:
        raise KeyError("callback")

    bad = core.add(prompt_of(5), greedy(5), on_token=fail)
    good = core.add(prompt_of(6), greedy(5))
    drain(core)
    assert bad.sequences[0].finish_reason == FinishReason.ERROR
    assert "KeyError" in bad.sequences[0].error
    assert_alone(good)
    assert_as_at_the_start(core)


def test_a_step_that_raises_ends_what_ran_and_nothing_else() -> None:
    core, runner = shadow_core(max_num_seqs=2)
    requests = add(core, 5, 6, 7)
    core.step()
    runner.raises = RuntimeError("the device is gone")
    assert core.step() == requests[:2]
    for request in requests[:2]:
        assert request.sequences[0].finish_reason == FinishReason.ERROR
        assert request.sequences[0].error == "RuntimeError: the device is gone"
    assert drain(core) == requests[2:]
    assert_alone(*requests)
    assert_as_at_the_start(core)


def test_an_interrupt_leaves_nothing_allocated() -> None:
    core, runner = shadow_core()
    add(core, 5, 6)
    core.step()
    runner.raises = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        core.step()
    assert_as_at_the_start(core)


def test_a_request_id_is_used_once_at_a_time() -> None:
    core, _ = shadow_core()
    core.add(prompt_of(5), greedy(1), request_id="mine")
    with pytest.raises(RequestError, match="'mine' is in use"):
        core.add(prompt_of(5), greedy(1), request_id="mine")
    drain(core)
    core.add(prompt_of(5), greedy(1), request_id="mine")
    drain(core)
