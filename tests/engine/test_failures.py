"""A request that fails takes nothing with it: its cache is free again and the engine goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.cache import OutOfBlocksError
from deepinfer.engine import Chunk, Engine, Generated, SamplingParams
from deepinfer.errors import RequestError
from tests.engine.runs import nothing_is_held, random_tokens, sequence, sequences, whole

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
def text(small_engine: Engine) -> list[Generated]:
    """What the request of these tests gives when nothing fails."""
    return list(small_engine.generate(random_tokens(small_engine, PROMPT_LENGTH), GREEDY))


def run(engine: Engine, into: list[Generated]) -> None:
    """The request of these tests; its tokens are added as they come."""
    for token in engine.generate(random_tokens(engine, PROMPT_LENGTH), GREEDY):
        into.append(token)


@pytest.mark.parametrize(("steps", "value"), [(0, "nan"), (1, "nan"), (2, "inf")])
def test_logits_that_are_no_numbers_fail_the_request_alone(
    steps: int, value: str, small_engine: Engine, text: list[Generated]
) -> None:
    place = torch.tensor([5])
    with pytest.MonkeyPatch.context() as patch:
        head = small_engine.backbone.head
        spoiled = after(steps, head, lambda x: x.index_fill(1, place, float(value)))
        patch.setattr(small_engine.backbone, "head", spoiled)
        got: list[Generated] = []
        with pytest.raises(RequestError, match="the model returned NaN"):
            run(small_engine, got)
        assert got == text[:steps]
    assert nothing_is_held(small_engine)
    again: list[Generated] = []
    run(small_engine, again)
    assert again == text


def with_logits(engine: Engine, change: Any, params: SamplingParams) -> list[Generated]:
    """A request to whose logits [n, V] `change` is applied in place."""
    with pytest.MonkeyPatch.context() as patch:
        head = engine.backbone.head

        def changed(*arguments: Any) -> Any:
            logits = head(*arguments)
            change(logits)
            return logits

        patch.setattr(engine.backbone, "head", changed)
        return list(engine.generate(random_tokens(engine, 5), params))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_one_logit_that_is_no_number_fails_a_draw(
    value: str, temperature: float, small_engine: Engine
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=1)
    got = with_logits(small_engine, lambda logits: logits.zero_(), params)
    assert got[0].token_id >= 0
    with pytest.raises(RequestError, match="the model returned NaN"):
        with_logits(small_engine, lambda logits: logits[:, 7].fill_(float(value)), params)


def test_a_row_without_a_finite_logit_fails(small_engine: Engine) -> None:
    with pytest.raises(RequestError, match="no finite logit"):
        with_logits(small_engine, lambda logits: logits.fill_(float("-inf")), GREEDY)


@pytest.mark.parametrize(
    ("operator", "calls"),
    [("embed", 0), ("update_context", 1), ("mixture", 7), ("logits", 1), ("sample", 2)],
)
def test_an_operator_that_raises_leaves_nothing_allocated(
    operator: str, calls: int, small_engine: Engine, text: list[Generated]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        broken = after(calls, getattr(small_engine.operators, operator), raising)
        patch.setattr(small_engine.operators, operator, broken)
        with pytest.raises(Broken):
            run(small_engine, [])
    assert nothing_is_held(small_engine)
    again: list[Generated] = []
    run(small_engine, again)
    assert again == text


def test_a_decode_step_that_raises_may_be_repeated(small_engine: Engine) -> None:
    """Nothing was committed: the rows run again with the bits of a run that never failed."""
    lengths = [9, 14]
    prompts = [random_tokens(small_engine, length + 1, seed=length) for length in lengths]
    with sequences(small_engine, 2) as caches:
        pairs = list(zip(prompts, lengths, caches, strict=True))
        small_engine.step([Chunk(prompt, 0, length, cache) for prompt, length, cache in pairs])
        chunks = [Chunk(prompt, length, length + 1, cache) for prompt, length, cache in pairs]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_engine.operators, "logits", raising)
            with pytest.raises(Broken):
                small_engine.step(chunks)
        assert [cache.length for cache in caches] == lengths
        got = small_engine.step(chunks)
    for row, prompt in zip(got, prompts, strict=True):
        assert torch.equal(row, whole(small_engine, prompt)[-1])


def test_running_out_of_pages_is_an_error_of_the_request(small_engine: Engine) -> None:
    """A request that does not fit beside another fails; the other one goes on."""
    prompt = random_tokens(small_engine, 19)
    want = whole(small_engine, prompt)
    manager = small_engine.cache
    with sequence(small_engine) as cache:
        small_engine.step([Chunk(prompt, 0, 16, cache)])
        taken = manager.pages.allocate(manager.pages.num_free - 1)
        with pytest.raises(OutOfBlocksError, match=r"no memory for 19 tokens: .*, 1 and .* free"):
            list(small_engine.generate(prompt, GREEDY))
        assert manager.slots.num_used == 1
        got = small_engine.step([Chunk(prompt, 16, 19, cache)], all_rows=True)
        manager.pages.free(taken)
    assert torch.equal(got, want[16:])


def test_more_requests_than_slots(small_engine: Engine) -> None:
    manager = small_engine.cache
    taken = manager.slots.allocate(manager.slots.num_free)
    try:
        with pytest.raises(OutOfBlocksError, match=r"sequence slots, of which .* and 0 are free"):
            list(small_engine.generate(random_tokens(small_engine, 3), GREEDY))
    finally:
        manager.slots.free(taken)
    assert len(list(small_engine.generate(random_tokens(small_engine, 3), GREEDY))) == 3


def test_extend_with_nothing_left_to_compute(small_engine: Engine) -> None:
    tokens = random_tokens(small_engine, 4)
    with sequence(small_engine) as cache:
        small_engine.extend(cache, tokens)
        with pytest.raises(ValueError, match="holds 4 tokens: none of 4 is left"):
            small_engine.extend(cache, tokens)
