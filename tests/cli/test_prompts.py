"""Prompts from stdin and files: bytes of every kind, one prompt a line."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from deepinfer.cli.prompts import read_prompts
from deepinfer.errors import UsageError

LINES = [
    (b"", []),
    (b"\n", [""]),
    (b"a", ["a"]),
    (b"a\nb\n", ["a", "b"]),
    (b"a\r\n\r\nb\r\n", ["a", "", "b"]),
    (b"a\rb", ["a", "b"]),
    (b"\xef\xbb\xbfa\nb", ["a", "b"]),
    (b"nul\0 \x0b\x0c\x1c\n", ["nul\0 \x0b\x0c\x1c"]),
    ("é 🚀 \u2028\u2029\x85\n".encode(), ["é 🚀 \u2028\u2029\x85"]),
]


def set_stdin(patch: pytest.MonkeyPatch, data: bytes) -> None:
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


@pytest.mark.parametrize(("data", "prompts"), LINES)
def test_lines_of_a_file_and_of_stdin(
    data: bytes, prompts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts"
    file.write_bytes(data)
    assert list(read_prompts([], str(file))) == prompts
    set_stdin(monkeypatch, data)
    assert list(read_prompts(["-"], None)) == prompts


def test_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts").write_text("e\n")
    set_stdin(monkeypatch, b"b\nc")
    arguments = ["a", "-", "d", "-"]
    assert list(read_prompts(arguments, str(tmp_path / "prompts"))) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("data", [b"a\n\xff\xfe\n", b"a\n\xc3", b"a\n\xed\xa0\x80"])
def test_what_is_not_utf8(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts").write_bytes(data)
    with pytest.raises(UsageError, match=r"prompt file '.*' cannot be read: line 2 is not UTF-8"):
        list(read_prompts([], str(tmp_path / "prompts")))
    set_stdin(monkeypatch, data)
    with pytest.raises(UsageError, match="stdin cannot be read: line 2 is not UTF-8 text"):
        list(read_prompts(["-"], None))


@pytest.mark.parametrize("name", ["nowhere", "", "a\0b", "x" * 5000, "\udcff"])
def test_no_such_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"prompt file .* cannot be read: "):
        list(read_prompts([], name))
