"""Lines of an input: numbers, byte-order marks, lines without end, room, and errors."""

from __future__ import annotations

import io
import os
import queue
import sys
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from deepinfer.cli import input_lines
from deepinfer.cli.input_lines import InputLines, raw_lines
from deepinfer.errors import UsageError


def lines(data: bytes) -> list[tuple[int, bytes]]:
    return [tuple(line) for line in raw_lines(io.BytesIO(data))]


def test_blank_lines_count_but_are_left_out() -> None:
    assert lines(b"\xef\xbb\xbfa\n\n \r\nb") == [(1, b"a\n"), (4, b"b")]


def test_a_line_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_lines, "MOST_BYTES", 4)
    assert lines(b"x" * 100 + b"\nabcd\nabc\n") == [(1, b"xxxxx"), (2, b"abcd\n"), (3, b"abc\n")]


def test_no_more_lines_are_out_than_there_is_room_for(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"1\n2\n3\n")
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    source = InputLines(str(path))
    source.start(2, events.put)
    assert [events.get().number for _ in range(2)] == [1, 2]
    assert events.empty()
    source.release()
    assert events.get().number == 3
    assert events.get() is None
    source.close()
    assert not [one for one in threading.enumerate() if one.name == "deepinfer-input"]


def test_close_ends_a_reader_that_waits_for_room(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"1\n2\n")
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    source = InputLines(str(path))
    source.start(1, events.put)
    assert events.get().number == 1
    source.close()
    assert events.empty()
    assert not [one for one in threading.enumerate() if one.name == "deepinfer-input"]


def test_close_does_not_wait_for_a_pipe_that_nobody_writes_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "wb") as writer:
        monkeypatch.setattr(sys, "stdin", pipe)
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        source = InputLines("-")
        source.start(2, events.put)
        source.close()
        (thread,) = (one for one in threading.enumerate() if one.name == "deepinfer-input")
        writer.write(b"1\n")
        writer.close()
        thread.join()
        source.close()
    assert events.empty()


def test_an_input_that_breaks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    def opened(name: str) -> IO[bytes]:
        return Broken()

    monkeypatch.setattr(input_lines, "open_input", opened)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    source = InputLines("x")
    source.start(1, events.put)
    assert isinstance(events.get(), OSError)
    source.close()


def test_an_input_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"input .* cannot be read: Is a directory"):
        InputLines(str(tmp_path))
