"""`deepinfer generate`, on the backend that computes nothing where the answers do not matter."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer.data import nano_checkpoint
from tests.cli.conftest import Ended, Launch

NULL = ("--accelerator", "null", "--allow-null", "--max_model_len", "256")


def lines(path: Path, *records: Any) -> str:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in records]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(path)


def results(done: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_bad_line_costs_that_line(launch: Launch, tmp_path: Path) -> None:
    source = lines(
        tmp_path / "in.jsonl",
        {"id": "a", "prompt": "x", "max_tokens": 3},
        "not json",
        "",
        {"id": 5, "prompt_token_ids": [1, 2], "max_tokens": 2, "n": 2, "logprobs": True},
        {"id": "a", "prompt": "again"},
        {"prompt_token_ids": [10**30]},
        {"prompt_token_ids": [1] * 300},
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    )
    done = launch("generate", source, "--ordered", *NULL)
    assert done.returncode == 1
    got = results(done)
    assert [record["index"] for record in got] == [1, 2, 4, 5, 6, 7, 8]
    assert [record.get("id") for record in got[:4]] == ["a", None, 5, "a"]
    errors = [record.get("error", "") for record in got]
    assert [bool(error) for error in errors] == [False, True, False, True, True, True, False]
    assert "'a' occurred before" in errors[3]
    assert "300 tokens" in errors[5]
    assert got[5]["finish_reason"] == "prompt_length_exceeded"
    assert len(got[0]["token_ids"]) == 3
    assert got[0]["finish_reason"] == "length"
    assert [len(one["token_ids"]) for one in got[2]["outputs"]] == [2, 2]
    assert len(got[2]["logprobs"]) == 2
    assert got[2]["prompt_tokens"] == 2
    assert "3 done, 4 failed, 0 done before\n" in done.stderr


def test_resumption_computes_only_what_is_missing(launch: Launch, tmp_path: Path) -> None:
    records = [{"prompt": f"p{i}", "max_tokens": 1} for i in range(6)]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines(source, *records)
    arguments = ("generate", str(source), "-o", str(out), *NULL)
    assert launch(*arguments).returncode == 0
    whole = out.read_bytes().splitlines(keepends=True)
    assert launch(*arguments).returncode == 2
    out.write_bytes(b"".join(whole[:3]) + whole[3][:20])
    done = launch(*arguments, "--resume")
    assert done.returncode == 0
    assert "3 done, 0 failed, 3 done before\n" in done.stderr
    kept = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert sorted(record["index"] for record in kept) == [1, 2, 3, 4, 5, 6]
    records[1]["prompt"] = "another"
    lines(source, *records)
    again = launch(*arguments, "--resume")
    assert "1 done, 0 failed, 5 done before\n" in again.stderr


def test_stdin_and_flags_that_a_line_overrides(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b'{"prompt": "x"}\n{"prompt": "x", "max_tokens": 2}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    done = launch("generate", "-", "--max_tokens", "5", "--ordered", *NULL)
    assert done.returncode == 0, done.stderr
    assert [len(record["token_ids"]) for record in results(done)] == [5, 2]


def test_more_lines_than_the_engine_holds(launch: Launch, tmp_path: Path) -> None:
    records = [{"prompt": f"p{i}", "max_tokens": 2} for i in range(40)]
    source = lines(tmp_path / "in.jsonl", *records)
    done = launch("generate", source, "--max_num_seqs", "2", *NULL)
    assert sorted(record["index"] for record in results(done)) == list(range(1, 41))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("nowhere.jsonl",), 2, "input 'nowhere.jsonl' cannot be read: No such file"),
        (("-", "--resume"), 2, "need a file of results"),
        (("-", "--top_p", "3"), 2, "top_p is 3.0"),
        (("-", "--grace", "-1"), 2, "grace is -1; allowed: seconds from 0 up"),
        (("-", "--accelerator", "null"), 2, "computes nothing"),
        (("-", "--accelerator", "nothing"), 3, "'nothing' is not installed"),
        (("-", "--model", "nowhere"), 4, "no such directory"),
    ],
)
def test_refusals(launch: Launch, arguments: tuple[str, ...], status: int, message: str) -> None:
    done = launch("generate", *arguments, DEEPINFER_ACCELERATOR="reference")
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_run_refuses_the_null_backend_too(launch: Launch) -> None:
    done = launch("run", "x", DEEPINFER_ACCELERATOR="null")
    assert done.returncode == 2
    assert "pass --allow-null" in done.stderr
    done = launch("run", "x", "--allow-null", "--max_tokens", "1", DEEPINFER_ACCELERATOR="null")
    assert done.returncode == 0
    assert "(means nothing in this mode)" in done.stderr


def test_notes_are_json_where_logs_are(launch: Launch, tmp_path: Path) -> None:
    source = lines(tmp_path / "in.jsonl", {"prompt": "x", "max_tokens": 1}, "bad")
    done = launch("generate", source, *NULL, DEEPINFER_LOG_FORMAT="json")
    notes = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(notes[0])
    assert any(one["level"] == "error" and "line 2" in one["message"] for one in notes)


@pytest.mark.slow
def test_flags_that_text_cannot_show_ask_for_json(launch: Launch) -> None:
    done = launch("run", "x", "--prompt_logprobs", *NULL)
    assert done.returncode == 2
    assert "add --json" in done.stderr
    done = launch(
        "run", "x", "--prompt_logprobs", "--logprobs", "--json", "--max_tokens", "1", *NULL
    )
    record = results(done)[0]
    assert len(record["logprobs"]) == 1
    assert record["prompt_logprobs"][0] is None
    assert record["prompt_logprobs"][1]["raw"] <= 0


def test_run_answers_together_and_in_order(launch: Launch) -> None:
    done = launch("run", "one", "two", "--json", "--n", "2", "--max_tokens", "2",
                  "--stop", "zz", *NULL)  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, summary = results(done)
    assert (first["prompt"], second["prompt"]) == ("one", "two")
    assert len(first["outputs"]) == 2
    assert summary["summary"]["requests"] == {"length": 4}
    plain = launch("run", "one", "--n", "2", "--max_tokens", "2", *NULL)
    assert plain.stdout.splitlines()[0] == "> one"
    assert plain.stdout.splitlines()[1].startswith("[0] ")


def test_the_checkpoint_is_the_trained_one(launch: Launch, tmp_path: Path) -> None:
    source = lines(tmp_path / "in.jsonl", {"prompt": "x", "max_tokens": 1})
    assert f"checkpoint {nano_checkpoint()}" in launch("generate", source, *NULL).stderr
