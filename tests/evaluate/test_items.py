"""Held-out items: what the package has, limits, and files that are wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deepinfer.engine import ModelRunner
from deepinfer.errors import UsageError
from deepinfer.evaluate import CLASSES, distance_class, heldout
from deepinfer.evaluate.items import encode

QUESTION = {"task": "recall", "distance": 9, "prompt": "p", "answer": "a", "ends": False}


def test_every_class_of_distance_has_questions() -> None:
    questions, texts = heldout()
    counts = Counter(question.group for question in questions)
    assert {counts["recall", bound] for bound in CLASSES} == {24}
    assert {counts["story", bound] for bound in CLASSES[1:]} == {24}
    assert counts["arithmetic", 0] == 40
    assert len(texts) == 32
    assert sum(count for (task, _), count in counts.items() if task == "json") == 40


def test_no_question_and_no_sum_is_asked_twice() -> None:
    questions, _ = heldout()
    assert len({question.prompt for question in questions}) == len(questions)
    sums = [q.answer.split(" = ")[0] for q in questions if q.task == "arithmetic"]
    assert len({frozenset(terms.split(" + ")) for terms in sums}) == 40


def test_the_limit_holds_for_each_kind() -> None:
    questions, texts = heldout(2)
    assert set(Counter(question.group for question in questions).values()) == {2}
    assert len(texts) == 2
    with pytest.raises(UsageError, match="limit is 0; allowed: 1 or more"):
        heldout(0)


@pytest.mark.parametrize(
    ("distance", "bound"), [(0, 0), (1, 16), (16, 16), (17, 32), (257, 512), (512, 512)]
)
def test_classes_end_with_their_bound(distance: int, bound: int) -> None:
    assert distance_class(distance) == bound


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        json.dumps({**QUESTION, "more": 1}),
        json.dumps({**QUESTION, "distance": 513}),
        json.dumps({"task": "text", "text": "x"}),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(json.dumps(QUESTION) + "\n" + line + "\n")
    with pytest.raises(UsageError, match=r"items\.jsonl, line 2: is no held-out item"):
        heldout(file=file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"items\.jsonl: cannot be read"):
        heldout(file=tmp_path / "items.jsonl")


def test_special_tokens_go_in_by_their_ids(bundled_runner: ModelRunner) -> None:
    tokenizer: Any = bundled_runner.tokenizer
    text = "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Yes<｜end▁of▁sentence｜>"
    ids = encode(tokenizer, text)
    assert ids == tokenizer.encode_with_control(text)
    assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
