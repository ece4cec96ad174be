"""The file of results through kills, resumptions and changes of the input."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli.records import digest_of
from deepinfer.cli.results import ResultFile, ResultStream, open_results
from deepinfer.errors import UsageError


def results(path: Path, **options: bool) -> ResultFile:
    file = ResultFile(path, **{"resume": False, "overwrite": False, **options})
    file.begin()
    return file


def write(path: Path, *records: dict[str, Any]) -> None:
    file = results(path, overwrite=True)
    for record in records:
        file.write(record)
    file.close()


def read(path: Path) -> list[Any]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def good(number: int, text: bytes, **more: Any) -> dict[str, Any]:
    return {"index": number, "digest": digest_of(text), "text": "x", **more}


DONE = good(1, b"one", finish_reason="stop")
FAILED = {"index": 2, "digest": digest_of(b"two"), "error": "no"}
CUT = good(3, b"three", finish_reason="abort")


def test_an_existing_file_is_kept_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(path, DONE)
    with pytest.raises(UsageError, match="--resume goes on where it ends, --overwrite replaces"):
        results(path)
    file = ResultFile(path, resume=False, overwrite=True)
    assert read(path) == [DONE]  # until there is something to replace it
    file.begin()
    file.close()
    assert path.read_bytes() == b""
    results(path).close()  # an empty one may be used


def test_resumption_keeps_what_is_done_and_good(tmp_path: Path) -> None:
    path = tmp_path / "out"
    partly = good(4, b"four", finish_reason="stop")
    partly["outputs"] = [{"finish_reason": "stop"}, {"finish_reason": "abort"}]
    short = good(5, b"five", finish_reason="insufficient_system_resource")
    write(path, DONE, FAILED, CUT, partly, short)
    path.write_bytes(path.read_bytes() + b'{"index": 6, "dig')
    path.chmod(0o640)
    file = results(path, resume=True)
    assert read(path) == [DONE]
    assert [file.is_done(n, digest_of(t)) for n, t in
            ((1, b"one"), (2, b"two"), (3, b"three"), (4, b"four"), (5, b"five"))] == [
        True, False, False, False, False]  # fmt: skip
    file.write(FAILED)
    file.finish()
    file.close()
    assert read(path) == [DONE, FAILED]
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_results_of_lines_that_changed_or_went_are_dropped_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out"
    other = good(2, b"two", finish_reason="stop")
    gone = good(3, b"three", finish_reason="stop")
    write(path, DONE, other, gone)
    file = results(path, resume=True)
    assert file.is_done(1, digest_of(b"one"))
    assert not file.is_done(2, digest_of(b"changed"))
    new = good(2, b"changed", finish_reason="stop")
    file.write(new)
    assert read(path) == [DONE, other, gone, new]  # a crash loses nothing
    file.finish()
    file.close()
    assert read(path) == [DONE, new]


def test_of_two_results_for_one_line_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "out"
    new = good(1, b"changed", finish_reason="stop")
    write(path, DONE, new)
    file = results(path, resume=True)
    assert file.is_done(1, digest_of(b"changed"))
    file.close()
    assert read(path) == [new]


@pytest.mark.parametrize("text", ["precious\n", "precious", '{"index": "x"}\n'])
def test_a_file_of_something_else_is_not_touched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"line 1 of output .* is no result of this command"):
        results(path, resume=True)
    assert path.read_text() == text


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    first = results(path)
    with pytest.raises(UsageError, match="is being written by another process"):
        results(path)
    first.close()
    results(path).close()


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    write(path, DONE, FAILED)
    os.symlink(path, link)
    results(link, resume=True).close()
    assert link.is_symlink()
    assert read(path) == [DONE]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory; name a file"):
        results(tmp_path)
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        results(tmp_path / "none" / "out")
    with pytest.raises(UsageError, match=r"cannot be written: .*null"):
        results(Path("a\0b"))


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UsageError, match="is the input; name another file"):
        open_results(str(path), str(path), io.StringIO(), resume=False, overwrite=True)
    with pytest.raises(UsageError, match="contradict"):
        open_results("x", str(path), io.StringIO(), resume=True, overwrite=True)
    assert path.read_text() == "{}\n"


def test_stdout_has_nothing_to_resume() -> None:
    out = io.StringIO()
    stream = open_results("-", "-", out, resume=False, overwrite=False)
    assert isinstance(stream, ResultStream)
    assert not stream.is_done(1, "x")
    stream.write({"text": "\u2028"})
    assert out.getvalue() == '{"text": "\\u2028"}\n'
