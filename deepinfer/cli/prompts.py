"""Prompts of run.py: its arguments, and the lines of stdin and of a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from deepinfer.cli.input_lines import STDIN
from deepinfer.errors import UsageError


def read_prompts(arguments: Sequence[str], file: str | None) -> Iterator[str]:
    """The prompts in order; "-" among the arguments stands for the lines of stdin.

    Text is UTF-8 in every locale, with or without a byte-order mark. Lines end with LF, CRLF or CR;
    the last line may end without. Errors: UsageError.
    """
    for argument in arguments:
        if argument == STDIN:
            yield from _lines(_stdin(), "stdin")
        else:
            yield argument
    if file is not None:
        name = f"prompt file {file!r}"
        try:
            data = Path(file).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: the path has a NUL
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{name} cannot be read: {reason}") from error
        yield from _lines(data, name)


def _stdin() -> bytes:
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise UsageError(f"stdin cannot be read: {error.strerror}") from error


def _lines(data: bytes, name: str) -> Iterator[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{name} cannot be read: line {line} is not UTF-8 text ({error.reason})"
        ) from error
    yield from (line.rstrip("\n") for line in io.StringIO(text, newline=None))
