"""Scorers: whether an answer is right, whether it is JSON, and the perplexity of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from deepinfer.evaluate.items import Question, Text
from deepinfer.strict_json import parse_object
from deepinfer.text import Tokenizer


def is_exact(question: Question, text: str, ended: bool) -> bool:
    """Whether an answer is the expected one to the letter.

    ended: the model gave the end-of-sentence token after it. Where the question asks for that, an
    answer that goes on is wrong.
    """
    return text == question.answer and (ended or not question.ends)


def is_json_object(text: str) -> bool:
    """Whether a text is one JSON object by RFC 8259, white space around it aside; a name that
    occurs twice, NaN and infinities are wrong."""
    try:
        parse_object(text)
    except ValueError:
        return False
    return True


def perplexity(logprobs: Sequence[float]) -> float | None:
    """exp of the mean negative log-probability; None for no token, infinite beyond the floats."""
    if not logprobs:
        return None
    try:
        return math.exp(-math.fsum(logprobs) / len(logprobs))
    except OverflowError:
        return math.inf


def answer_tokens(tokenizer: Tokenizer, ids: Sequence[int], text: Text) -> list[int]:
    """Positions of the tokens that have a byte of an answer.

    ids: of the whole text, special tokens included. Works for any byte-level tokenizer, also one
    whose tokens reach over the edge of an answer.
    """
    edges = [
        (len(text.text[:first].encode()), len(text.text[:last].encode()))
        for first, last in text.answers
    ]
    found = []
    position = 0
    for index, token in enumerate(ids):
        end = position + len(tokenizer.token_bytes(token))
        if any(position < last and first < end for first, last in edges):
            found.append(index)
        position = end
    return found
