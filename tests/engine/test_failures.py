"""A request that fails takes nothing with it: its cache is free again and the engine goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.cache import OutOfBlocksError
from deepinfer.engine import ModelRunner, SamplingParams
from deepinfer.errors import RequestError
from tests.engine.runs import (
    Generated,
    Piece,
    generate,
    nothing_is_held,
    random_tokens,
    sequence,
    sequences,
    step,
    whole,
)

GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


class Broken(RuntimeError):
    """What a failing operator raises here."""


def after(calls: int, operator: Any, then: Any) -> Any:
    """`operator` for the first calls, then what `then` makes of its result."""
    left = [calls]

    def call(*arguments: Any) -> Any:
        left[0] -= 1
        result = operator(*arguments)
        return result if left[0] >= 0 else then(result)

    return call


def raising(*_: Any) -> Any:
    raise Broken


PROMPT_LENGTH = 11


@pytest.fixture(scope="module")
def text(small_runner: ModelRunner) -> list[Generated]:
    """What the request of these tests gives when nothing fails."""
    return list(generate(small_runner, random_tokens(small_runner, PROMPT_LENGTH), GREEDY))


def run(runner: ModelRunner, into: list[Generated]) -> None:
    """The request of these tests; its tokens are added as they come."""
    for token in generate(runner, random_tokens(runner, PROMPT_LENGTH), GREEDY):
        into.append(token)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "value"), [(0, "nan"), (1, "nan"), (2, "inf")])
def test_logits_that_are_no_numbers_fail_the_request_alone(
    steps: int, value: str, small_runner: ModelRunner, text: list[Generated]
) -> None:
    place = torch.tensor([5])
    with pytest.MonkeyPatch.context() as patch:
        head = small_runner.backbone.head
        spoiled = after(steps, head, lambda x: x.index_fill(1, place, float(value)))
        patch.setattr(small_runner.backbone, "head", spoiled)
        got: list[Generated] = []
        with pytest.raises(RequestError, match="the model returned NaN"):
            run(small_runner, got)
        assert got == text[:steps]
    assert nothing_is_held(small_runner)
    again: list[Generated] = []
    run(small_runner, again)
    assert again == text


def with_logits(runner: ModelRunner, change: Any, params: SamplingParams) -> list[Generated]:
    """A request to whose logits [n, V] `change` is applied in place."""
    with pytest.MonkeyPatch.context() as patch:
        head = runner.backbone.head

        def changed(*arguments: Any) -> Any:
            logits = head(*arguments)
            change(logits)
            return logits

        patch.setattr(runner.backbone, "head", changed)
        return list(generate(runner, random_tokens(runner, 5), params))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_one_logit_that_is_no_number_fails_a_draw(
    value: str, temperature: float, small_runner: ModelRunner
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=1)
    got = with_logits(small_runner, lambda logits: logits.zero_(), params)
    assert got[0].token_id >= 0
    with pytest.raises(RequestError, match="the model returned NaN"):
        with_logits(small_runner, lambda logits: logits[:, 7].fill_(float(value)), params)


def test_a_row_without_a_finite_logit_fails(small_runner: ModelRunner) -> None:
    with pytest.raises(RequestError, match="no finite logit"):
        with_logits(small_runner, lambda logits: logits.fill_(float("-inf")), GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "calls"),
    [("embed", 0), ("update_context", 1), ("mixture", 7), ("logits", 1), ("sample", 2)],
)
def test_an_operator_that_raises_leaves_nothing_allocated(
    operator: str, calls: int, small_runner: ModelRunner, text: list[Generated]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        broken = after(calls, getattr(small_runner.operators, operator), raising)
        patch.setattr(small_runner.operators, operator, broken)
        with pytest.raises(Broken):
            run(small_runner, [])
    assert nothing_is_held(small_runner)
    again: list[Generated] = []
    run(small_runner, again)
    assert again == text


@pytest.mark.slow
def test_a_decode_step_that_raises_may_be_repeated(small_runner: ModelRunner) -> None:
    """Nothing was committed: the rows run again with the bits of a run that never failed."""
    lengths = [9, 14]
    prompts = [random_tokens(small_runner, length + 1, seed=length) for length in lengths]
    with sequences(small_runner, 2) as caches:
        pairs = list(zip(prompts, lengths, caches, strict=True))
        step(small_runner, [Piece(prompt, 0, length, cache) for prompt, length, cache in pairs])
        chunks = [Piece(prompt, length, length + 1, cache) for prompt, length, cache in pairs]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_runner.operators, "logits", raising)
            with pytest.raises(Broken):
                step(small_runner, chunks)
        assert [cache.length for cache in caches] == lengths
        got = step(small_runner, chunks)
    for row, prompt in zip(got, prompts, strict=True):
        assert torch.equal(row, whole(small_runner, prompt)[-1])


@pytest.mark.slow
def test_running_out_of_pages_is_an_error_of_the_request(small_runner: ModelRunner) -> None:
    """A request that does not fit beside another fails; the other one goes on."""
    prompt = random_tokens(small_runner, 19)
    want = whole(small_runner, prompt)
    manager = small_runner.cache
    with sequence(small_runner) as cache:
        step(small_runner, [Piece(prompt, 0, 16, cache)])
        taken = manager.pages.allocate(manager.pages.num_free - 1)
        with pytest.raises(OutOfBlocksError, match=r"no memory for 19 tokens: .*, 1 and .* free"):
            list(generate(small_runner, prompt, GREEDY))
        assert manager.slots.num_used == 1
        got = step(small_runner, [Piece(prompt, 16, 19, cache)], all_rows=True)
        manager.pages.free(taken)
    assert torch.equal(got, want[16:])


def test_more_requests_than_slots(small_runner: ModelRunner) -> None:
    manager = small_runner.cache
    taken = manager.slots.allocate(manager.slots.num_free)
    try:
        with pytest.raises(OutOfBlocksError, match=r"sequence slots, of which .* and 0 are free"):
            list(generate(small_runner, random_tokens(small_runner, 3), GREEDY))
    finally:
        manager.slots.free(taken)
    assert len(list(generate(small_runner, random_tokens(small_runner, 3), GREEDY))) == 3
