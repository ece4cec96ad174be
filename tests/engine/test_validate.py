"""Prompts that are refused, and the numbers that the message names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deepinfer.engine import Engine, ModelRunner, SamplingParams
from deepinfer.errors import RequestError
from tests.conftest import MAX_MODEL_LEN
from tests.engine.runs import generate

VOCABULARY = 320

REFUSED: list[tuple[str, Any, str]] = [
    ("empty", [], "no tokens"),
    ("empty array", np.array([], np.int64), "no tokens"),
    ("empty text", "", "no tokens"),
    ("negative", [5, -1, 7], r"id -1 at place 1 is outside the vocabulary 0\.\.319"),
    ("vocabulary", [3, 4, VOCABULARY], r"id 320 at place 2 is outside the vocabulary 0\.\.319"),
    ("32 bits", [2**31], "id 2147483648 at place 0"),
    ("64 bits", [2**64, 1], "id 18446744073709551616 at place 0"),
    ("wide and negative", [2**63, -1], "id 9223372036854775808 at place 0"),
    ("unsigned", np.array([1, 2**63], np.uint64), "id 9223372036854775808 at place 1"),
    ("float", [1, 2.0], "2.0 at place 1 is no integer"),
    ("float array", np.array([1.5]), "1.5.* at place 0 is no integer"),
    ("NaN", [float("nan")], "nan at place 0 is no integer"),
    ("truth", [True, False], "True at place 0 is no integer"),
    ("text", "ab", "'a' at place 0 is no integer"),
    ("texts", [1, "2"], "'2' at place 1 is no integer"),
    ("none", [1, None], "None at place 1 is no integer"),
    ("matrix", [[1, 2], [3, 4]], r"\[1, 2\] at place 0 is no integer"),
    ("matrix array", np.ones((2, 2), np.int64), "at place 0 is no integer"),
    ("ragged", [[1], [2, 3]], r"\[1\] at place 0 is no integer"),
    ("too long", [1] * MAX_MODEL_LEN, "has 128 tokens and max_model_len is 128"),
    ("far too long", [1] * 1000, "has 1000 tokens and max_model_len is 128"),
]


@pytest.mark.parametrize(
    ("prompt", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused_prompts(prompt: Any, message: str, small_runner: ModelRunner) -> None:
    assert small_runner.config.text.vocab_size == VOCABULARY
    with pytest.raises(RequestError, match=message):
        Engine(small_runner).admission.check(prompt, SamplingParams())


@pytest.mark.parametrize(
    "prompt",
    [
        [0, 319, 7],
        (0, 319, 7),
        range(0, 9, 3),
        np.array([0, 319, 7], np.int32),
        np.array([0, 255], np.uint8),
        np.array([0, 319], np.uint64),
        [np.int64(3), 4, np.uint8(5)],
        torch.tensor([0, 319]),
        np.arange(10)[::-3],
        [1] * (MAX_MODEL_LEN - 1),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_accepted_prompts(prompt: Any, small_runner: ModelRunner) -> None:
    tokens = Engine(small_runner).admission.check(prompt, SamplingParams())
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [int(token) for token in prompt]


def test_the_caller_keeps_its_array(small_runner: ModelRunner) -> None:
    prompt = np.array([5, 6, 7])
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    list(generate(small_runner, prompt, params))
    assert prompt.tolist() == [5, 6, 7]


def test_generate_refuses_before_it_takes_cache(small_runner: ModelRunner) -> None:
    with pytest.raises(RequestError, match="id 999"):
        next(iter(generate(small_runner, [1, 999], SamplingParams())))


def test_an_image_id_without_images_is_an_ordinary_token(small_runner: ModelRunner) -> None:
    image = small_runner.config.image_token_id
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    assert len(list(generate(small_runner, [3, image, 4], params))) == 1
