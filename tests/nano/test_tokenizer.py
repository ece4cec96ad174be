"""The tokenizer of the nano checkpoint: one token for every word, every special token there."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer.evaluate import heldout
from deepinfer.text import Tokenizer, encode_chat
from deepinfer.text.template import ASSISTANT, BOS, END_THINK, EOS, USER
from deepinfer.text.tokenizer import CONTROL_SPELLINGS
from examples.nano import data, tokenizer
from examples.nano import heldout as making

FILES = Path(data.__file__).parent


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    config: Any = SimpleNamespace(
        text=SimpleNamespace(vocab_size=tokenizer.VOCABULARY_SIZE),
        **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 2047},
    )
    return Tokenizer.from_directory(FILES, config)


@pytest.mark.slow
def test_the_files_are_as_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = tokenizer.build()
    monkeypatch.setattr(tokenizer, "build", lambda: made)
    assert tokenizer.main(["--check"]) == 0
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((FILES / name).read_bytes() + b" ")
    capsys.readouterr()
    assert tokenizer.main([str(tmp_path), "--check"]) == 1
    assert "tokenizer.json: differs" in capsys.readouterr().out


def test_every_word_is_one_token(ours: Tokenizer) -> None:
    every = [f"{space}{word}" for pool in tokenizer.POOLS for word in pool for space in ("", " ")]
    assert [text for text in every if len(ours.encode(text)) != 1] == []


def test_digits_stay_apart(ours: Tokenizer) -> None:
    assert [ours.token_bytes(i) for i in ours.encode("1973")] == [b"1", b"9", b"7", b"3"]


def test_every_special_token_is_there(ours: Tokenizer) -> None:
    assert ours.vocab_size == tokenizer.VOCABULARY_SIZE
    assert [s for s in CONTROL_SPELLINGS if not ours.has_token(s)] == []
    assert ours.has_token("<｜draft▁slot｜>")


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_documents_have_as_many_tokens_as_the_generator_counts(
    ours: Tokenizer, split: data.Split
) -> None:
    for document in islice(data.documents(8, split), 100):
        ids = ours.encode_with_control(document.text)
        assert len(ids) == data.token_count(document.text)
        first, last = document.answer_spans[-1]
        before = ours.encode_with_control(document.text[:first])
        assert ids[: len(before)] == before  # an answer begins with a token
        assert ours.decode(ids[len(before) :]).startswith(document.text[first:last])


def test_chats_are_written_as_the_template_writes_them(ours: Tokenizer) -> None:
    for document in islice(data.documents(8, "train", tasks=["story", "arithmetic", "json"]), 50):
        messages = []
        for turn in document.text.removeprefix(BOS).split(EOS)[:-1]:
            asked, answer = turn.removeprefix(USER).split(ASSISTANT + END_THINK)
            messages.append({"role": "user", "content": asked})
            prompt = encode_chat(ours, messages)
            assert prompt == ours.encode_with_control(
                document.text[: document.text.index(turn)] + USER + asked + ASSISTANT + END_THINK
            )
            messages.append({"role": "assistant", "content": answer})


@pytest.mark.slow
def test_held_out_items_are_as_made() -> None:
    assert making.main(["--check"]) == 0
    assert making.FILE.stat().st_size < 1_000_000


def test_held_out_distances_are_those_of_the_tokens(ours: Tokenizer) -> None:
    questions, _ = heldout()
    for question in questions:
        if question.task != "recall":
            continue
        ids = ours.encode_with_control(question.prompt + question.answer)
        assert ids[-1] == ids[-1 - question.distance]


def test_held_out_lines_are_plain_json() -> None:
    for line in making.FILE.read_text(encoding="utf-8").splitlines():
        assert json.loads(line)["task"] in {*data.SHARES, "text"}
