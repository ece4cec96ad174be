"""`Engine.generate`: where it ends, what repeats it, and what does not change it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from deepinfer.engine import ModelRunner, SamplingParams
from tests.conftest import BLOCK_TOKENS, MAX_MODEL_LEN, PAGE_TOKENS, RunnerOf
from tests.engine.runs import Generated, Tokens, generate, nothing_is_held, random_tokens, whole

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.2, max_tokens=6, seed=7, ignore_eos=True)


def generated(runner: ModelRunner, prompt: Tokens, params: SamplingParams) -> list[Generated]:
    return list(generate(runner, prompt, params))


def ids(runner: ModelRunner, prompt: Tokens, params: SamplingParams) -> list[int]:
    return [one.token_id for one in generated(runner, prompt, params)]


def changed(params: SamplingParams, **values: Any) -> SamplingParams:
    return dataclasses.replace(params, **values)


@pytest.fixture(scope="module")
def prompt(small_runner: ModelRunner) -> Tokens:
    return random_tokens(small_runner, 9)


@pytest.fixture(scope="module")
def text(small_runner: ModelRunner, prompt: Tokens) -> list[int]:
    """Greedy tokens of the prompt."""
    return ids(small_runner, prompt, GREEDY)


def test_greedy_tokens_are_the_argmax_of_the_whole_forward(
    small_runner: ModelRunner, prompt: Tokens, text: list[int]
) -> None:
    sequence = [*prompt.tolist(), *text]
    logits = whole(small_runner, np.array(sequence))
    assert text == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.slow
def test_greedy_text_of_the_bundled_checkpoint_in_other_modes(bundled_runners: RunnerOf) -> None:
    for numerics, compute in (("ref", "bf16"), ("infer", "fp32")):
        runner = bundled_runners(numerics, compute)
        start = random_tokens(runner, 14)
        text = ids(runner, start, changed(GREEDY, max_tokens=3))
        logits = whole(runner, np.array([*start.tolist(), *text]))
        assert text == logits[13:-1].argmax(-1).tolist(), (numerics, compute)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_tokens(count: int, small_runner: ModelRunner, prompt: Tokens) -> None:
    text = generated(small_runner, prompt, changed(GREEDY, max_tokens=count))
    assert [one.finish_reason for one in text] == [""] * (count - 1) + ["length"]


def ending_with(runner: ModelRunner, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `token` the end-of-sentence token of the engine."""
    config = dataclasses.replace(runner.config, eos_token_id=token)
    monkeypatch.setattr(runner.checkpoint, "config", config)


@pytest.mark.slow
def test_the_end_of_sentence_token_stops(
    small_runner: ModelRunner, prompt: Tokens, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = next(i for i in range(1, 6) if text[i] not in text[:i])
    ending_with(small_runner, text[last], monkeypatch)
    got = generated(small_runner, prompt, changed(GREEDY, ignore_eos=False))
    assert [one.token_id for one in got] == text[: last + 1]
    assert [one.finish_reason for one in got] == [""] * last + ["stop"]


def test_end_of_sentence_as_the_last_allowed_token_is_a_stop(
    small_runner: ModelRunner, prompt: Tokens, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending_with(small_runner, text[0], monkeypatch)
    params = changed(GREEDY, max_tokens=1, ignore_eos=False)
    assert generated(small_runner, prompt, params) == [Generated(text[0], "stop")]


@pytest.mark.slow
def test_ignore_eos_goes_on(
    small_runner: ModelRunner, prompt: Tokens, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending_with(small_runner, text[1], monkeypatch)
    assert ids(small_runner, prompt, GREEDY) == text


@pytest.mark.slow
@pytest.mark.parametrize("room", [1, 3])
def test_max_model_len_ends_the_text(room: int, small_runner: ModelRunner) -> None:
    prompt = random_tokens(small_runner, MAX_MODEL_LEN - room)
    got = generated(small_runner, prompt, changed(GREEDY, max_tokens=9))
    assert [one.finish_reason for one in got] == [""] * (room - 1) + ["length"]


WINDOW = 8
LENGTHS = [1, 2, PAGE_TOKENS, WINDOW, WINDOW + 1, BLOCK_TOKENS, BLOCK_TOKENS + 1]


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_that_end_at_an_edge(length: int, small_runner: ModelRunner) -> None:
    assert small_runner.config.text.sliding_window == WINDOW
    prompt = random_tokens(small_runner, length, seed=length)
    text = ids(small_runner, prompt, changed(GREEDY, max_tokens=3))
    logits = whole(small_runner, np.array([*prompt.tolist(), *text]))
    assert text == logits[length - 1 : -1].argmax(-1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 32, 33])
def test_prompts_that_end_at_an_edge_of_the_bundled_checkpoint(
    length: int, bundled_runner: ModelRunner
) -> None:
    assert bundled_runner.config.text.sliding_window == 32
    prompt = random_tokens(bundled_runner, length, seed=length)
    text = ids(bundled_runner, prompt, changed(GREEDY, max_tokens=2))
    logits = whole(bundled_runner, np.array([*prompt.tolist(), *text]))
    assert text == logits[length - 1 : -1].argmax(-1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rows", [1, 5])
def test_rows_per_step_do_not_change_the_text(
    rows: int,
    params: SamplingParams,
    small_runner: ModelRunner,
    prompt: Tokens,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = changed(params, max_tokens=3)
    want = ids(small_runner, prompt, params)
    options = dataclasses.replace(small_runner.options, max_num_batched_tokens=rows)
    monkeypatch.setattr(small_runner, "options", options)
    assert ids(small_runner, prompt, params) == want


@pytest.mark.slow
def test_a_seed_repeats_its_text_and_another_gives_another(
    small_runner: ModelRunner, prompt: Tokens
) -> None:
    params = changed(SAMPLED, temperature=2.0, max_tokens=4)
    texts = [ids(small_runner, prompt, changed(params, seed=seed)) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3


@pytest.mark.slow
def test_seeds_are_64_bits(small_runner: ModelRunner, prompt: Tokens) -> None:
    """-1 and 2^64 - 1 are the same bits."""
    largest, negative, least = (
        ids(small_runner, prompt, changed(SAMPLED, max_tokens=3, seed=seed))
        for seed in (2**64 - 1, -1, -(2**63))
    )
    assert largest == negative
    assert largest != least


@pytest.mark.slow
def test_without_a_seed_texts_differ(small_runner: ModelRunner, prompt: Tokens) -> None:
    params = changed(SAMPLED, temperature=3.0, max_tokens=4, seed=None)
    assert ids(small_runner, prompt, params) != ids(small_runner, prompt, params)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, -2])
def test_temperature_0_ignores_the_seed(
    seed: int, small_runner: ModelRunner, prompt: Tokens, text: list[int]
) -> None:
    params = changed(GREEDY, max_tokens=3, seed=seed)
    assert ids(small_runner, prompt, params) == text[:3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "filters", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.999999}, {"temperature": 1e-40}], ids=str
)
def test_filters_that_leave_one_token_are_greedy(
    filters: dict[str, float], small_runner: ModelRunner, prompt: Tokens, text: list[int]
) -> None:
    params = changed(SAMPLED, temperature=1.2, max_tokens=3)
    assert ids(small_runner, prompt, changed(params, **filters)) == text[:3]


def test_a_huge_temperature_is_allowed(small_runner: ModelRunner, prompt: Tokens) -> None:
    params = changed(SAMPLED, temperature=1e300, max_tokens=2)
    assert len(generated(small_runner, prompt, params)) == 2


def test_an_abandoned_text_gives_its_cache_back(small_runner: ModelRunner, prompt: Tokens) -> None:
    running = generate(small_runner, prompt, GREEDY)
    next(running)
    assert not nothing_is_held(small_runner)
    running.close()  # type: ignore[attr-defined]
    assert nothing_is_held(small_runner)


@pytest.mark.slow
def test_texts_that_take_turns(small_runner: ModelRunner) -> None:
    """Two requests at the same time do not change each other."""
    params = changed(GREEDY, max_tokens=4)
    prompts = [random_tokens(small_runner, length, seed=length) for length in (5, 15)]
    wants = [generated(small_runner, prompt, params) for prompt in prompts]
    running = [generate(small_runner, prompt, params) for prompt in prompts]
    got = list(zip(*running, strict=True))
    assert [list(text) for text in zip(*got, strict=True)] == wants
