"""Chat prompts equal those of the vendor's package (`scripts/make_chat_vectors.py` stored them)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.text import Tokenizer, encode_chat
from deepinfer.text.template import EFFORTS, ROLES, chat_segments

FILE = Path(__file__).with_name("chat_vectors.json")


@pytest.fixture(scope="module")
def vectors() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def conversation_of(vector: dict[str, Any]) -> tuple[Any, bool, str | None]:
    return vector["messages"], vector["thinking"], vector["effort"]


def test_text_of_every_stored_prompt(vectors: list[dict[str, Any]]) -> None:
    for vector in vectors:
        rendered = "".join(segment.text for segment in chat_segments(*conversation_of(vector)))
        assert rendered == vector["prompt"], conversation_of(vector)


def test_ids_of_every_stored_prompt(tokenizer: Tokenizer, vectors: list[dict[str, Any]]) -> None:
    for vector in vectors:
        ids = encode_chat(tokenizer, *conversation_of(vector))
        assert ids == vector["ids"], conversation_of(vector)


def test_vectors_cover_every_role_and_option(vectors: list[dict[str, Any]]) -> None:
    roles = {message["role"] for vector in vectors for message in vector["messages"]}
    keys = {key for vector in vectors for message in vector["messages"] for key in message}
    assert roles == set(ROLES)
    assert keys == {"role", "content", "reasoning_content"}
    options = {(vector["thinking"], vector["effort"]) for vector in vectors}
    assert options == {(False, None), (True, None), *((True, effort) for effort in EFFORTS)}
