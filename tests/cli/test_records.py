"""Lines of `deepinfer generate`: what they ask for, or why they are wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deepinfer.cli.records import digest_of, read_line


def line(record: Any, defaults: dict[str, Any] | None = None) -> Any:
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    return read_line(7, data, defaults or {})


def test_what_a_line_asks_for() -> None:
    got = line({"id": "a", "prompt": "x", "max_tokens": 3}, {"max_tokens": 9, "temperature": 0})
    assert (got.number, got.id, got.prompt, got.error) == (7, "a", "x", "")
    assert (got.params.max_tokens, got.params.temperature) == (3, 0)
    nested = line({"prompt_token_ids": [1, 2], "sampling_params": {"n": 2, "logit_bias": {"5": 1}}})
    assert nested.prompt == [1, 2]
    assert (nested.params.n, nested.params.logit_bias) == (2, {5: 1})
    chat = line({"messages": [{"role": "user", "content": "x"}]})
    assert chat.prompt == [{"role": "user", "content": "x"}]
    assert chat.id is None


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"{", "no JSON object"),
        (b"\xff{}", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN is no JSON number"),
        ([1], "the line is list; allowed: a JSON object"),
        ({}, "one of prompt, prompt_token_ids, messages; found: none"),
        ({"prompt": "x", "messages": []}, "found: prompt and messages"),
        ({"prompt": 3}, "prompt is int; allowed: a text"),
        ({"prompt_token_ids": "x"}, "prompt_token_ids is str; allowed: a list"),
        ({"messages": ["x"]}, "messages is a list of objects"),
        (b'{"prompt": "x", "prompt": "y"}', "'prompt' occurs twice"),
        ({"prompt": "x", "sampling_params": {"prompt": "y"}}, "'prompt' is no sampling parameter"),
        ({"prompt": "x", "sampling_params": []}, "sampling_params is .*; allowed: an object"),
        ({"prompt_token_ids": [1, 2.5]}, "prompt_token_ids is a list of integers"),
        ({"prompt_token_ids": [{"role": "user"}]}, "prompt_token_ids is a list of integers"),
        ({"prompt": "x", "id": True}, "id is True; allowed"),
        ({"prompt": "x", "id": [1]}, "id is .1.; allowed: a text or an integer"),
        ({"prompt": "x", "max_token": 3}, "'max_token' is no sampling parameter; did you mean"),
        ({"prompt": "x", "top_p": 3}, "top_p is 3; allowed"),
        ({"prompt": "x", "sampling_params": 3}, "sampling_params is 3; allowed: an object"),
        ({"prompt": "x", "n": 1, "sampling_params": {"n": 2}}, "'n' is in the line and in its"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias is .*; allowed: ids"),
        ({"prompt": "x", "logit_bias": {"1": 1, "01": 2}}, "logit_bias is .*names one id twice"),
        ({"prompt": "x", "best_of": 2}, "'best_of' is no sampling parameter; use n"),
        ({"prompt": "x", "so_args": {}}, "structured output is not built yet"),
    ],
)
def test_a_wrong_line_says_why(record: Any, message: str) -> None:
    got = line(record)
    assert got.params is None
    assert got.number == 7
    assert re.search(message, got.error), got.error


def test_a_line_is_found_again_by_its_digest() -> None:
    assert digest_of(b"one") == digest_of(b" one\n") != digest_of(b"two")


def test_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer.cli.records.MOST_BYTES", 20)
    assert line({"prompt": "x" * 40}).error == "the line is too long; allowed: 20 bytes"
