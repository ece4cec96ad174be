"""`InputLines`: reads the lines of an input in a thread, a limited number of lines ahead."""

from __future__ import annotations

import codecs
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from deepinfer.errors import UsageError

STDIN = "-"
MOST_BYTES = 64 * 2**20
"""The most bytes of a line. A longer one is cut at one byte more, and `read_line` refuses it."""


class RawLine(NamedTuple):
    """A line that is not blank. number: from 1, blank lines included."""

    number: int
    data: bytes


class InputLines:
    """A file, or stdin for "-", read by its own thread. UsageError where it cannot be read."""

    def __init__(self, name: str) -> None:
        self._file = open_input(name)
        self._room = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self, room: int, put: Callable[[RawLine | Exception | None], None]) -> None:
        """Start to read: call `put` with every line, and at the end with None or with an error.

        At most `room` lines are handed out at a time. For each line that is finished, the caller
        calls `release`, which lets one more be read.
        """
        self._room = threading.Semaphore(room)
        self._thread = threading.Thread(
            target=self._read, args=(put,), name="deepinfer-input", daemon=True
        )
        self._thread.start()

    def release(self) -> None:
        """Let one more line be read, because an earlier one is finished."""
        self._room.release()

    def close(self) -> None:
        """Stop reading. A thread that waits for a terminal or a pipe ends with the process."""
        self._stopped = True
        self._room.release()
        if self._thread is not None:
            self._thread.join(timeout=0.1)
            if self._thread.is_alive():
                return  # closing the file would wait for that thread
        self._file.close()

    def _read(self, put: Callable[[RawLine | Exception | None], None]) -> None:
        try:
            for line in raw_lines(self._file):
                self._room.acquire()
                if self._stopped:
                    return
                put(line)
            put(None)
        except Exception as error:
            put(error)


def raw_lines(file: IO[bytes]) -> Iterator[RawLine]:
    """The lines of a file that are not blank, cut after `MOST_BYTES` + 1 bytes."""
    number = 0
    while data := file.readline(MOST_BYTES + 1):
        number += 1
        if number == 1:
            data = data.removeprefix(codecs.BOM_UTF8)
        rest = data
        while len(rest) > MOST_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MOST_BYTES + 1)
        if data.strip():
            yield RawLine(number, data)


def open_input(name: str) -> IO[bytes]:
    """The input file, or stdin for "-"; UsageError where it cannot be read."""
    try:
        if name == STDIN:
            return _stdin()
        return open(name, "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"input {name!r} cannot be read: {reason}") from error


def _stdin() -> IO[bytes]:
    """stdin without Python's buffer, whose lock a waiting thread would still hold at exit."""
    if sys.stdin is None:
        return io.BytesIO()
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # stdin is an object in memory, without a file descriptor
        return sys.stdin.buffer
