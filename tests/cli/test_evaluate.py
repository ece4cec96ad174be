"""`deepinfer eval nano`: a table or JSON on stdout, with engine options as flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli import evaluate as command
from deepinfer.evaluate import Question, Text
from tests.cli.conftest import Launch

QUESTIONS = [Question("recall", 9, "<｜begin▁of▁sentence｜>lamp red. lamp", " red", False)]
TEXTS = [Text("<｜begin▁of▁sentence｜>lamp red", ((25, 29),))]


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """One question and one text; the limits that were asked for."""
    limits: list[int | None] = []

    def heldout(limit: int | None) -> tuple[list[Question], list[Text]]:
        limits.append(limit)
        return QUESTIONS, TEXTS

    monkeypatch.setattr(command, "heldout", heldout)
    return limits


REFERENCE = ("eval", "nano", "--accelerator", "reference", "--max-model-len", "128")


@pytest.mark.slow
def test_json_says_what_was_measured(
    launch: Launch, small_directory: Path, few_items: list[int | None]
) -> None:
    model = str(small_directory)
    done = launch(
        *REFERENCE, "--model", model, "--numerics", "ref", "--max_num_seqs", "3", "--json"
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    settings = document["settings"]
    assert (settings["model"], settings["limit"]) == (model, None)
    assert (settings["backend"], settings["numerics"]) == ("reference", "ref")
    assert settings["options"]["max_num_seqs"] == 3
    assert document["accuracy"][0]["count"] == 1
    assert document["perplexity"] > 1
    assert few_items == [None]


def test_table_limit_and_a_failed_request(
    launch: Launch, small_directory: Path, few_items: list[int | None]
) -> None:
    arguments = ("--model", str(small_directory), "--limit", "5", "--max-model-len", "2")
    done = launch(*REFERENCE, *arguments)
    assert done.returncode == 1
    assert "deepinfer eval nano" in done.stdout
    assert "failed requests: 2" in done.stdout
    assert few_items == [5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "0"), "limit is 0; allowed: 1 or more"),
        (("--temperature", "1"), "No such option: --temperature"),
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
        (("--accelerator", "null"), "computes nothing"),
    ],
)
def test_wrong_flags_end_with_status_2(
    launch: Launch, arguments: tuple[str, ...], message: str
) -> None:
    done = launch("eval", "nano", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "--allow-null" not in done.stderr  # which it does not have


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "nano"), (("micro",), "No such command 'micro'")]
)
def test_a_name_that_exists_is_needed(
    launch: Launch, arguments: tuple[str, ...], said: str
) -> None:
    done = launch("eval", *arguments)
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_model_is_none(launch: Launch) -> None:
    done = launch("eval", "nano", "--model", "", "--accelerator", "reference")
    assert (done.returncode, done.stdout) == (4, "")
    assert "'': no such directory" in done.stderr
