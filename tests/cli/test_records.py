"""Lines of `deepinfer generate`, and the file of results through kills and resumptions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli.records import ResultFile, digest_of, read_line
from deepinfer.errors import UsageError


def line(record: Any, defaults: dict[str, Any] | None = None) -> Any:
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    return read_line(7, data, defaults or {})


def test_what_a_line_asks_for() -> None:
    got = line({"id": "a", "prompt": "x", "max_tokens": 3}, {"max_tokens": 9, "temperature": 0})
    assert (got.number, got.id, got.prompt, got.error) == (7, "a", "x", "")
    assert (got.params.max_tokens, got.params.temperature) == (3, 0)
    nested = line({"prompt_token_ids": [1, 2], "sampling_params": {"n": 2, "logit_bias": {"5": 1}}})
    assert nested.prompt == [1, 2] and (nested.params.n, nested.params.logit_bias) == (2, {5: 1})
    chat = line({"messages": [{"role": "user", "content": "x"}]})
    assert chat.prompt == [{"role": "user", "content": "x"}] and chat.id is None


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
        ({"prompt": "x", "id": [1]}, "id is .1.; allowed: a text or an integer"),
        ({"prompt": "x", "max_token": 3}, "'max_token' is no sampling parameter; did you mean"),
        ({"prompt": "x", "top_p": 3}, "top_p is 3; allowed"),
        ({"prompt": "x", "sampling_params": 3}, "sampling_params is 3; allowed: an object"),
        ({"prompt": "x", "n": 1, "sampling_params": {"n": 2}}, "'n' is in the line and in its"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias is .*; allowed: ids"),
        ({"prompt": "x", "best_of": 2}, "'best_of' is no sampling parameter; use n"),
        ({"prompt": "x", "so_args": {}}, "structured output is not built yet"),
    ],
)
def test_a_wrong_line_says_why(record: Any, message: str) -> None:
    got = line(record)
    assert got.params is None and got.number == 7

    assert re.search(message, got.error), got.error


def results(path: Path, **options: bool) -> ResultFile:
    return ResultFile(path, **{"resume": False, "overwrite": False, **options})


def write(path: Path, *records: dict[str, Any]) -> None:
    file = results(path, overwrite=True)
    for record in records:
        file.write(record)
    file.close()


DONE = {"line": 1, "input": digest_of(b"one"), "text": "x", "finish_reason": "stop"}
FAILED = {"line": 2, "input": digest_of(b"two"), "error": "no"}
CUT = {"line": 3, "input": digest_of(b"three"), "text": "x", "finish_reason": "abort"}


def test_an_existing_file_is_kept_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, DONE)
    with pytest.raises(UsageError, match="--resume goes on where it ends, --overwrite replaces"):
        results(path)
    with pytest.raises(UsageError, match="contradict"):
        results(path, resume=True, overwrite=True)
    results(path, overwrite=True).close()
    assert path.read_bytes() == b""
    results(path).close()  # an empty one may be used


def test_resumption_keeps_what_is_done_and_good(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, DONE, FAILED, CUT)
    path.write_bytes(path.read_bytes() + b'{"line": 4, "inp')
    file = results(path, resume=True)
    assert file.is_done(1, digest_of(b"one")) and file.is_done(1, digest_of(b" one\n"))
    assert not file.is_done(1, digest_of(b"changed"))
    assert not any(file.is_done(n, digest_of(t)) for n, t in ((2, b"two"), (3, b"three")))
    file.write(FAILED)
    file.close()
    kept = [json.loads(text) for text in path.read_text().splitlines()]
    assert kept == [DONE, FAILED]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("precious\n")
    with pytest.raises(UsageError, match="line 1 of output .* is no result of this command"):
        results(path, resume=True)
    assert path.read_text() == "precious\n"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory; name a file"):
        results(tmp_path)
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        results(tmp_path / "none" / "out")
