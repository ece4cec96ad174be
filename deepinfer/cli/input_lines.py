"""Lines of an input of any length, read ahead in a thread as far as there is room for them."""

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
"""Bytes of a line; what is longer is cut there, and refused by who reads the line."""


class RawLine(NamedTuple):
    """A line that is not blank, and its number from 1 (blank ones count)."""

    number: int
    data: bytes


class InputLines:
    """An input, "-" for stdin, read by a thread of its own. UsageError where it cannot be read."""

    def __init__(self, name: str) -> None:
        self._file = open_input(name)
        self._room = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self, room: int, put: Callable[[RawLine | Exception | None], None]) -> None:
        """Call `put` with every line, then with None, or with the error that ended the input.

        At most `room` lines are out at a time: whoever has dealt with one calls `release`.
        """
        self._room = threading.Semaphore(room)
        self._thread = threading.Thread(
            target=self._read, args=(put,), name="deepinfer-input", daemon=True
        )
        self._thread.start()

    def release(self) -> None:
        """Make room for one line more."""
        self._room.release()

    def close(self) -> None:
        """Read no more. A thread that waits for a terminal or a pipe is left to the process."""
        self._stopped = True
        self._room.release()
        if self._thread is not None:
            self._thread.join(timeout=0.1)
            if self._thread.is_alive():
                return  # closing the file would wait for it
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
    """The lines of a file that are not blank, each at most one byte above `MOST_BYTES` long."""
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
    """stdin without Python's buffer, which a thread that waits in it would hold at exit."""
    if sys.stdin is None:
        return io.BytesIO()
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # no file of the system: it is in memory
        return sys.stdin.buffer
