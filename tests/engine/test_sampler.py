"""Everything that changes a distribution before the draw, each against a plain computation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.backend import SamplingParameters
from deepinfer.engine import ModelRunner, SamplingParams
from deepinfer.engine.request import FinishReason, Request, Sequence, TokenLogprobs
from deepinfer.engine.sampler import FLOOR, Drawn, Sampler, SamplingRules
from deepinfer.errors import RequestError
from deepinfer_reference.backend import ReferenceBackend
from tests.engine.runs import random_tokens, whole
from tests.engine.shadow import WINDOW, assert_as_at_the_start, drain, logits_of, shadow_engine
from tests.engine.test_engine import engine_with

VOCABULARY, EOS = 12, 3
PROMPT, OUTPUT = [1, 2, 2, 5], [5, 7, 7, 7, 2]
INFINITY = float("inf")


class Recorder(ReferenceBackend):
    """The reference, keeping the logits that were processed last."""

    processed: Tensor

    def process(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        self.processed = logits.clone()
        return super().process(logits, parameters)


def running(slot: int, output: list[int] = OUTPUT, **values: Any) -> Sequence:
    """A running sequence with the given parameters, in its slot."""
    params = SamplingParams(**{"temperature": 0, "max_tokens": 20, **values})
    request = Request(f"r{slot}", slot, np.array(PROMPT), params, 0.0)
    sequence = Sequence(request, 0, 1, np.array([*PROMPT, *output]), len(PROMPT))
    cache: Any = SimpleNamespace(slot=slot)
    sequence.cache = cache
    return sequence


def draw(logits: Tensor, sequences: list[Sequence], **rules: Any) -> tuple[Drawn, Tensor]:
    """The tokens, and the logits [n, V] that were processed for them."""
    operators = Recorder("cpu")
    sampler = Sampler(operators, len(sequences) + 1, EOS, SamplingRules(**rules))
    for sequence in sequences:
        sampler.enter(sequence)
    slots = np.array([s.cache.slot for s in sequences if s.cache is not None])
    positions = np.array([s.known for s in sequences])
    drawn = sampler.draw(logits, slots, sequences, positions)
    return drawn, operators.processed


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3


def adjusted(logits: Tensor, output: list[int] = OUTPUT, **values: Any) -> list[float]:
    """What is processed for one sequence; the caller's logits stay as they are."""
    before = logits.clone()
    drawn, processed = draw(logits, [running(1, output, **values)])
    assert torch.equal(logits, before)
    assert int(drawn.ids[0]) == int(processed[0].argmax())
    return [float(value) for value in processed[0]]


def test_nothing_is_changed_by_default(logits: Tensor) -> None:
    assert adjusted(logits) == logits[0].tolist()


def test_frequency_penalty_counts_output_tokens(logits: Tensor) -> None:
    counts = {token: OUTPUT.count(token) for token in range(VOCABULARY)}
    want = [float(x) - 0.5 * counts[t] for t, x in enumerate(logits[0])]
    assert adjusted(logits, frequency_penalty=0.5) == pytest.approx(want, abs=1e-6)


def test_presence_penalty_is_taken_once(logits: Tensor) -> None:
    want = [float(x) - 1.5 * (t in OUTPUT) for t, x in enumerate(logits[0])]
    assert adjusted(logits, presence_penalty=1.5) == pytest.approx(want, abs=1e-6)


def test_both_penalties_add(logits: Tensor) -> None:
    want = [
        float(x) - (-1.0 * OUTPUT.count(t) + 2.0 * (t in OUTPUT)) for t, x in enumerate(logits[0])
    ]
    got = adjusted(logits, frequency_penalty=-1.0, presence_penalty=2.0)
    assert got == pytest.approx(want, abs=1e-6)


def test_without_output_there_is_nothing_to_penalise(logits: Tensor) -> None:
    got = adjusted(logits, [], frequency_penalty=2.0, presence_penalty=2.0)
    assert got == logits[0].tolist()


@pytest.mark.parametrize("factor", [0.5, 1.3])
def test_repetition_penalty_covers_prompt_and_output(factor: float, logits: Tensor) -> None:
    want = [
        float(x) if t not in PROMPT + OUTPUT else float(x / factor if x > 0 else x * factor)
        for t, x in enumerate(logits[0])
    ]
    assert adjusted(logits, repetition_penalty=factor) == pytest.approx(want, abs=1e-6)


def test_logit_bias(logits: Tensor) -> None:
    bias = {4: 2.5, 9: -100.0, 0: 1e-3}
    want = [float(x) + bias.get(t, 0.0) for t, x in enumerate(logits[0])]
    assert adjusted(logits, logit_bias=bias) == pytest.approx(want, abs=1e-5)


def test_bias_comes_before_penalties(logits: Tensor) -> None:
    """A bias that makes a logit positive makes the penalty divide it."""
    got = adjusted(logits, logit_bias={7: 50.0}, repetition_penalty=2.0)
    assert got[7] == pytest.approx((float(logits[0, 7]) + 50) / 2, abs=1e-5)


def test_allow_list(logits: Tensor) -> None:
    want = [float(x) if t in (2, 8) else -INFINITY for t, x in enumerate(logits[0])]
    assert adjusted(logits, allowed_token_ids=[8, 2]) == want


def test_deny_list(logits: Tensor) -> None:
    best = int(logits[0].argmax())
    want = [-INFINITY if t in (best, 0) else float(x) for t, x in enumerate(logits[0])]
    assert adjusted(logits, banned_token_ids=[best, 0]) == want


def test_deny_wins_over_allow_and_over_bias(logits: Tensor) -> None:
    got = adjusted(
        logits, allowed_token_ids=[2, 8], banned_token_ids=[8], logit_bias={8: 100.0, 5: 100.0}
    )
    assert [t for t, x in enumerate(got) if x > -INFINITY] == [2]


def test_the_blacklist_of_the_engine_holds_for_every_request(logits: Tensor) -> None:
    rows = logits.repeat(2, 1)
    _, processed = draw(rows, [running(1), running(2, logit_bias={6: 50.0})], blacklist=(6, 1))
    for row in processed.tolist():
        assert [t for t, x in enumerate(row) if x == -INFINITY] == [1, 6]


@pytest.mark.parametrize(("count", "held"), [(4, True), (5, False), (6, False)])
def test_min_tokens_bars_what_would_stop(count: int, held: bool, logits: Tensor) -> None:
    got = adjusted(logits, ([7] * count), min_tokens=5, stop_token_ids=[4, 9])
    barred = [t for t, x in enumerate(got) if x == -INFINITY]
    assert barred == ([EOS, 4, 9] if held else [])


def test_min_tokens_leaves_an_end_of_sentence_that_does_not_stop(logits: Tensor) -> None:
    got = adjusted(logits, [], min_tokens=5, ignore_eos=True)
    assert got == logits[0].tolist()


def test_rows_do_not_touch_each_other() -> None:
    rows = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(1))
    values: list[dict[str, Any]] = [
        {"banned_token_ids": [0, 1], "temperature": 1.0},
        {},
        {"logprobs": True, "top_k": 3, "temperature": 0.7},
        {"allowed_token_ids": [7], "repetition_penalty": 1.7},
    ]
    together, processed = draw(rows, [running(i + 1, **v) for i, v in enumerate(values)])
    for i, own in enumerate(values):
        single, row = draw(rows[i : i + 1], [running(1, **own)])
        assert int(single.ids[0]) == int(together.ids[i])
        assert torch.equal(row[0], processed[i])
        assert single.logprobs.get(0) == together.logprobs.get(i)


def log_softmax(row: Tensor) -> list[float]:
    return [float(x) for x in row.double().log_softmax(-1)]


def test_logprobs_raw_and_processed(logits: Tensor) -> None:
    """Raw: of the model's own logits. Processed: of what was drawn from."""
    values: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "logit_bias": {4: 1.0}}
    drawn, processed = draw(logits, [running(1, logprobs=True, top_logprobs=4, **values)])
    token, got = int(drawn.ids[0]), drawn.logprobs[0]
    assert got is not None
    raw = log_softmax(logits[0])
    assert got.raw == pytest.approx(raw[token], abs=1e-6)
    scaled = processed[0] * 2
    kept = scaled.topk(3).indices.tolist()
    want = torch.full_like(scaled, -INFINITY)
    want[kept] = scaled[kept]
    assert got.processed == pytest.approx(log_softmax(want)[token], abs=1e-6)
    best = sorted(range(VOCABULARY), key=lambda t: -raw[t])[:4]
    assert list(got.top) == best
    assert list(got.top.values()) == pytest.approx([raw[t] for t in best], abs=1e-6)


def test_greedy_logprobs(logits: Tensor) -> None:
    drawn, _ = draw(logits, [running(1, logprobs=True)])
    got = drawn.logprobs[0]
    assert got is not None
    assert got.top == {}
    assert got.processed == 0
    assert got.raw == pytest.approx(max(log_softmax(logits[0])), abs=1e-6)


def test_logprobs_have_a_floor(logits: Tensor) -> None:
    logits[0, :10] = -INFINITY
    drawn, _ = draw(logits, [running(1, top_logprobs=12)])
    got = drawn.logprobs[0]
    assert got is not None
    assert sorted(got.top.values())[:10] == [FLOOR] * 10


def test_lists_that_leave_nothing_fail_that_request_alone() -> None:
    engine, _ = shadow_engine()
    barred = SamplingParams(allowed_token_ids=[2], banned_token_ids=[2], max_tokens=2)
    bad = engine.add([1, 2, 3], barred)
    good = engine.add([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True, seed=1))
    drain(engine)
    assert bad.sequences[0].finish_reason == FinishReason.ERROR
    assert "allowed_token_ids, banned_token_ids" in bad.sequences[0].error
    assert good.sequences[0].finish_reason == FinishReason.LENGTH
    assert_as_at_the_start(engine)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    engine, _ = shadow_engine()
    for name, value in (
        ("stop_token_ids", [24]),
        ("allowed_token_ids", [-1]),
        ("banned_token_ids", [99]),
        ("logit_bias", {24: 1.0}),
    ):
        with pytest.raises(RequestError, match=f"{name} names id .*; allowed: 0 to 23"):
            engine.add([1], SamplingParams(**{name: value}))
    with pytest.raises(RequestError, match="top_logprobs is 25; the vocabulary has 24"):
        engine.add([1], SamplingParams(top_logprobs=25))
    assert_as_at_the_start(engine)


def raws(logprobs: list[TokenLogprobs]) -> list[float]:
    return [one.raw for one in logprobs]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 64])
@pytest.mark.parametrize("length", [1, 2, 9, 20])
def test_prompt_logprobs_across_chunks(length: int, rows: int) -> None:
    engine, _ = shadow_engine(max_num_batched_tokens=rows)
    prompt = np.random.default_rng(0).integers(0, 24, length)
    params = SamplingParams(prompt_logprobs=True, top_logprobs=2, max_tokens=3, n=2, seed=1)
    other = engine.add(prompt[::-1], SamplingParams(max_tokens=2, seed=2))
    request = engine.add(prompt, params)
    drain(engine)
    want = [
        log_softmax(logits_of(prompt[:end], prompt[:end][-WINDOW:]))[prompt[end]]
        for end in range(1, length)
    ]
    assert raws(request.prompt_logprobs) == pytest.approx(want, abs=1e-6)
    assert all(len(one.top) == 2 for one in request.prompt_logprobs)
    assert other.prompt_logprobs == []


def test_prompt_logprobs_of_a_preempted_prompt_are_given_once() -> None:
    engine, _ = shadow_engine(blocks=4, max_num_batched_tokens=6)
    prompt = np.random.default_rng(0).integers(0, 24, 30)
    engine.add(prompt[::-1], SamplingParams(max_tokens=20, ignore_eos=True, temperature=0))
    request = engine.add(prompt, SamplingParams(prompt_logprobs=True, max_tokens=3, seed=1))
    drain(engine)
    want = [
        log_softmax(logits_of(prompt[:end], prompt[:end][-WINDOW:]))[prompt[end]]
        for end in range(1, 30)
    ]
    assert raws(request.prompt_logprobs) == pytest.approx(want, abs=1e-6)


@pytest.mark.slow
def test_prompt_logprobs_of_the_model(small_runner: ModelRunner) -> None:
    prompt = random_tokens(small_runner, 21)
    logits = whole(small_runner, prompt)
    want = [log_softmax(row)[token] for row, token in zip(logits, prompt[1:], strict=False)]
    found = []
    for rows in (64, 8):
        with engine_with(small_runner, max_num_batched_tokens=rows) as (engine, _):
            request = engine.add(prompt, SamplingParams(prompt_logprobs=True, max_tokens=2, seed=1))
            drain(engine)
        found.append(raws(request.prompt_logprobs))
    assert found[0] == found[1]
    assert found[0] == pytest.approx(want, abs=1e-5)
