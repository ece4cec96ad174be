"""`Engine.generate`: where it ends, what repeats it, and what does not change it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from deepinfer.engine import Engine, Generated, SamplingParams
from tests.conftest import BLOCK_TOKENS, MAX_MODEL_LEN, PAGE_TOKENS, EngineOf
from tests.engine.runs import Tokens, nothing_is_held, random_tokens, whole

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.2, max_tokens=6, seed=7, ignore_eos=True)


def generated(engine: Engine, prompt: Tokens, params: SamplingParams) -> list[Generated]:
    return list(engine.generate(prompt, params))


def ids(engine: Engine, prompt: Tokens, params: SamplingParams) -> list[int]:
    return [one.token_id for one in generated(engine, prompt, params)]


def changed(params: SamplingParams, **values: Any) -> SamplingParams:
    return dataclasses.replace(params, **values)


@pytest.fixture(scope="module")
def prompt(small_engine: Engine) -> Tokens:
    return random_tokens(small_engine, 9)


@pytest.fixture(scope="module")
def text(small_engine: Engine, prompt: Tokens) -> list[int]:
    """Greedy tokens of the prompt."""
    return ids(small_engine, prompt, GREEDY)


def test_greedy_tokens_are_the_argmax_of_the_whole_forward(
    small_engine: Engine, prompt: Tokens, text: list[int]
) -> None:
    sequence = [*prompt.tolist(), *text]
    logits = whole(small_engine, small_engine.validate(sequence))
    assert text == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_greedy_text_of_the_bundled_checkpoint_in_other_modes(bundled_engines: EngineOf) -> None:
    for numerics, compute in (("ref", "bf16"), ("infer", "fp32")):
        engine = bundled_engines(numerics, compute)
        start = random_tokens(engine, 14)
        text = ids(engine, start, changed(GREEDY, max_tokens=3))
        logits = whole(engine, engine.validate([*start.tolist(), *text]))
        assert text == logits[13:-1].argmax(-1).tolist(), (numerics, compute)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_tokens(count: int, small_engine: Engine, prompt: Tokens) -> None:
    text = generated(small_engine, prompt, changed(GREEDY, max_tokens=count))
    assert [one.finish_reason for one in text] == [""] * (count - 1) + ["length"]


def ending_with(engine: Engine, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `token` the end-of-sentence token of the engine."""
    config = dataclasses.replace(engine.config, eos_token_id=token)
    monkeypatch.setattr(engine, "config", config)


def test_the_end_of_sentence_token_stops(
    small_engine: Engine, prompt: Tokens, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = next(i for i in range(1, 6) if text[i] not in text[:i])
    ending_with(small_engine, text[last], monkeypatch)
    got = generated(small_engine, prompt, changed(GREEDY, ignore_eos=False))
    assert [one.token_id for one in got] == text[: last + 1]
    assert [one.finish_reason for one in got] == [""] * last + ["stop"]


def test_end_of_sentence_as_the_last_allowed_token_is_a_stop(
    small_engine: Engine, prompt: Tokens, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending_with(small_engine, text[0], monkeypatch)
    params = changed(GREEDY, max_tokens=1, ignore_eos=False)
    assert generated(small_engine, prompt, params) == [Generated(text[0], "stop")]


def test_ignore_eos_goes_on(
    small_engine: Engine, prompt: Tokens, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending_with(small_engine, text[1], monkeypatch)
    assert ids(small_engine, prompt, GREEDY) == text


@pytest.mark.parametrize("room", [1, 3])
def test_max_model_len_ends_the_text(room: int, small_engine: Engine) -> None:
    prompt = random_tokens(small_engine, MAX_MODEL_LEN - room)
    got = generated(small_engine, prompt, changed(GREEDY, max_tokens=9))
    assert [one.finish_reason for one in got] == [""] * (room - 1) + ["length"]


WINDOW = 8
LENGTHS = [1, 2, PAGE_TOKENS, WINDOW, WINDOW + 1, BLOCK_TOKENS, BLOCK_TOKENS + 1]


@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_that_end_at_an_edge(length: int, small_engine: Engine) -> None:
    assert small_engine.config.text.sliding_window == WINDOW
    prompt = random_tokens(small_engine, length, seed=length)
    text = ids(small_engine, prompt, changed(GREEDY, max_tokens=3))
    logits = whole(small_engine, small_engine.validate([*prompt.tolist(), *text]))
    assert text == logits[length - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("length", [1, 32, 33])
def test_prompts_that_end_at_an_edge_of_the_bundled_checkpoint(
    length: int, bundled_engine: Engine
) -> None:
    assert bundled_engine.config.text.sliding_window == 32
    prompt = random_tokens(bundled_engine, length, seed=length)
    text = ids(bundled_engine, prompt, changed(GREEDY, max_tokens=2))
    logits = whole(bundled_engine, bundled_engine.validate([*prompt.tolist(), *text]))
    assert text == logits[length - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rows", [1, 5])
def test_rows_per_step_do_not_change_the_text(
    rows: int,
    params: SamplingParams,
    small_engine: Engine,
    prompt: Tokens,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = changed(params, max_tokens=3)
    want = ids(small_engine, prompt, params)
    options = dataclasses.replace(small_engine.options, max_num_batched_tokens=rows)
    monkeypatch.setattr(small_engine, "options", options)
    assert ids(small_engine, prompt, params) == want


def test_a_seed_repeats_its_text_and_another_gives_another(
    small_engine: Engine, prompt: Tokens
) -> None:
    params = changed(SAMPLED, temperature=2.0, max_tokens=4)
    texts = [ids(small_engine, prompt, changed(params, seed=seed)) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3


def test_seeds_are_64_bits(small_engine: Engine, prompt: Tokens) -> None:
    """-1 and 2^64 - 1 are the same bits."""
    largest, negative, least = (
        ids(small_engine, prompt, changed(SAMPLED, max_tokens=3, seed=seed))
        for seed in (2**64 - 1, -1, -(2**63))
    )
    assert largest == negative
    assert largest != least


def test_without_a_seed_texts_differ(small_engine: Engine, prompt: Tokens) -> None:
    params = changed(SAMPLED, temperature=3.0, max_tokens=4, seed=None)
    assert ids(small_engine, prompt, params) != ids(small_engine, prompt, params)


@pytest.mark.parametrize("seed", [1, -2])
def test_temperature_0_ignores_the_seed(
    seed: int, small_engine: Engine, prompt: Tokens, text: list[int]
) -> None:
    params = changed(GREEDY, max_tokens=3, seed=seed)
    assert ids(small_engine, prompt, params) == text[:3]


@pytest.mark.parametrize(
    "filters", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 0.999999}, {"temperature": 1e-40}], ids=str
)
def test_filters_that_leave_one_token_are_greedy(
    filters: dict[str, float], small_engine: Engine, prompt: Tokens, text: list[int]
) -> None:
    params = changed(SAMPLED, temperature=1.2, max_tokens=3)
    assert ids(small_engine, prompt, changed(params, **filters)) == text[:3]


def test_a_huge_temperature_is_allowed(small_engine: Engine, prompt: Tokens) -> None:
    params = changed(SAMPLED, temperature=1e300, max_tokens=2)
    assert len(generated(small_engine, prompt, params)) == 2


def test_an_abandoned_text_gives_its_cache_back(small_engine: Engine, prompt: Tokens) -> None:
    running = small_engine.generate(prompt, GREEDY)
    next(running)
    assert not nothing_is_held(small_engine)
    running.close()  # type: ignore[attr-defined]
    assert nothing_is_held(small_engine)


def test_texts_that_take_turns(small_engine: Engine) -> None:
    """Two requests at the same time do not change each other."""
    params = changed(GREEDY, max_tokens=4)
    prompts = [random_tokens(small_engine, length, seed=length) for length in (5, 15)]
    wants = [generated(small_engine, prompt, params) for prompt in prompts]
    running = [small_engine.generate(prompt, params) for prompt in prompts]
    got = list(zip(*running, strict=True))
    assert [list(text) for text in zip(*got, strict=True)] == wants


def test_timing_counts_tokens(small_engine: Engine, prompt: Tokens) -> None:
    before = dataclasses.replace(small_engine.timing)
    generated(small_engine, prompt, changed(GREEDY, max_tokens=3))
    timing = small_engine.timing
    assert timing.prefill_tokens - before.prefill_tokens == len(prompt)
    assert timing.decode_tokens - before.decode_tokens == 2
    assert all(rate > 0 for rate in timing.rates())
