"""Each scorer at the edges of what it accepts."""

from __future__ import annotations

import math

import pytest

from deepinfer.engine import ModelRunner
from deepinfer.evaluate import Question, Text
from deepinfer.evaluate.scorers import answer_tokens, is_exact, is_json_object, perplexity


@pytest.mark.parametrize(
    ("text", "ended", "ends", "right"),
    [
        ("It is.", True, True, True),
        ("It is.", False, True, False),  # goes on
        ("It is.", False, False, True),
        ("It is. ", True, True, False),
        ("it is.", True, True, False),
        ("It is", False, False, False),
        ("", True, False, False),
    ],
)
def test_exact_means_every_letter_and_the_end(
    text: str, ended: bool, ends: bool, right: bool
) -> None:
    assert is_exact(Question("story", 1, "p", "It is.", ends), text, ended) is right


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("{}", True),
        (' {"a": [1, null]}\n', True),
        ('{"a": 1', False),
        ('{"a": 1} x', False),
        ('{"a": 1, "a": 2}', False),
        ('{"a": NaN}', False),
        ('{"a": -Infinity}', False),
        ("{'a': 1}", False),
        ("[1]", False),
        ("1", False),
        ("", False),
        ("[" * 100_000, False),
    ],
)
def test_json_is_one_object(text: str, valid: bool) -> None:
    assert is_json_object(text) is valid


def test_perplexity_is_the_mean_surprise() -> None:
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4)
    assert perplexity([0.0]) == 1
    assert perplexity([]) is None
    assert perplexity([-math.inf, 0.0]) == math.inf
    assert perplexity([-1e6]) == math.inf


def test_tokens_of_an_answer_are_those_with_a_byte_of_it(bundled_runner: ModelRunner) -> None:
    tokenizer = bundled_runner.tokenizer
    text = "<｜User｜>é lamp, red. lamp red"
    ids = tokenizer.encode_with_control(text)
    pieces = [tokenizer.token_bytes(token).decode(errors="replace") for token in ids]
    first = text.rindex(" red")
    found = answer_tokens(tokenizer, ids, Text(text, ((first, len(text)),)))
    assert "".join(pieces[i] for i in found) == " red"
    assert found == list(range(found[0], len(ids)))
    start = text.index(",")  # between two tokens on either side
    comma = answer_tokens(tokenizer, ids, Text(text, ((start, start + 1),)))
    assert "".join(pieces[i] for i in comma) == ","
    inside = answer_tokens(tokenizer, ids, Text(text, ((first + 1, first + 2),)))
    assert len(inside) == 1
    assert "r" in pieces[inside[0]]
    assert answer_tokens(tokenizer, ids, Text(text, ())) == []
