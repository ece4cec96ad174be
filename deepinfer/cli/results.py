"""The results of `deepinfer generate`: a file that a later run can continue, or stdout.

Each line of the file is written and flushed as a whole; a run that was killed leaves at most one
torn line at the end. A result belongs to an input line if its `index` and `digest` are those of the
line. With --resume, lines are computed again whose result failed, was cut short by a signal, or
belongs to a line that has changed; the old results of such lines are dropped.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from deepinfer.cli.input_lines import STDIN
from deepinfer.errors import UsageError

STDOUT = "-"
START = b'{"index": '
"""How every line begins, which tells a torn line from text of another program."""

UNFINISHED = ("abort", "insufficient_system_resource")


def open_results(
    name: str, source: str, stdout: IO[str], *, resume: bool, overwrite: bool
) -> ResultFile | ResultStream:
    """The file of results, or stdout for "-". source: the input, which must be another file."""
    if resume and overwrite:
        raise UsageError("--resume and --overwrite contradict each other; give one of them")
    if name == STDOUT:
        if resume or overwrite:
            raise UsageError(
                "--resume and --overwrite need a file of results; name one with --output"
            )
        return ResultStream(stdout)
    with contextlib.suppress(OSError, ValueError):
        if source != STDIN and os.path.samefile(source, name) and os.path.isfile(name):
            raise UsageError(f"output {name!r} is the input; name another file")
    return ResultFile(Path(name), resume=resume, overwrite=overwrite)


class ResultFile:
    """A file of results. Nothing in it changes before `begin`."""

    def __init__(self, path: Path, *, resume: bool, overwrite: bool) -> None:
        """UsageError for a file that exists, unless one of the options is given."""
        self._name = str(path)
        self._overwrite = overwrite
        self._done: dict[int, str] = {}
        self._untidy = False
        try:
            self._path = path.resolve()
            if self._path.is_dir():
                raise UsageError(f"output {self._name!r} is a directory; name a file")
            self._file = self._open()
        except (OSError, ValueError) as error:  # ValueError: no path, it has a NUL
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"output {self._name!r} cannot be written: {reason}") from error
        try:
            exists = self._path.is_file() and self._path.stat().st_size > 0
            if exists and not (resume or overwrite):
                raise UsageError(
                    f"output {self._name!r} exists; --resume goes on where it ends, --overwrite "
                    "replaces it"
                )
            if exists and resume:
                self._scan()
        except BaseException:
            self._file.close()
            raise

    def begin(self) -> None:
        """Drop the results that a resumed run does not keep."""
        if self._overwrite and self._path.is_file():
            self._file.truncate(0)
        if self._untidy:
            wanted = dict(self._done)

            def keep(record: dict[str, Any]) -> bool:
                fits = wanted.get(record["index"]) == record["digest"] and _is_good(record)
                return fits and wanted.pop(record["index"]) is not None

            self._rewrite(keep)

    def is_done(self, number: int, digest: str) -> bool:
        """Whether this line has a result already; to be asked once for each input line."""
        if self._done.get(number) != digest:
            return False
        del self._done[number]
        return True

    def write(self, record: dict[str, Any]) -> None:
        """Append a line and flush it."""
        self._file.write(_encode(record))
        self._file.flush()

    def finish(self) -> None:
        """Call when the whole input was read: drops results of lines that it no longer has."""
        if self._done:
            stale = self._done
            self._rewrite(lambda record: stale.get(record["index"]) != record["digest"])
            self._done = {}

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        with contextlib.suppress(OSError):  # a pipe or a terminal cannot be synchronised
            os.fsync(self._file.fileno())
        self._file.close()

    def _open(self) -> IO[bytes]:
        """Open and lock the file for appending; UsageError while another process has it locked."""
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(self._path, "ab"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise UsageError(
                        f"output {self._name!r} is being written by another process; wait for it, "
                        "or name another file"
                    ) from None
            opened.pop_all()  # the caller keeps it open
            return file

    def _scan(self) -> None:
        """Find the results that are whole and good; of two for one line the later counts."""
        with open(self._path, "rb") as file:
            for number, line in enumerate(file, 1):
                record = _result(line)
                if record is None:
                    if line.endswith(b"\n") or line[: len(START)] != START[: len(line)]:
                        raise UsageError(
                            f"line {number} of output {self._name!r} is no result of this "
                            "command; name another file, or use --overwrite"
                        )
                    self._untidy = True  # torn
                elif not _is_good(record):
                    self._untidy = True
                else:
                    self._untidy |= record["index"] in self._done
                    self._done[record["index"]] = record["digest"]

    def _rewrite(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Replace the file, in one atomic step, by its lines that are kept."""
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            with open(self._path, "rb") as old, open(temporary, "wb") as new:
                for line in old:
                    record = _result(line)
                    if record is not None and keep(record):
                        new.write(line)
                new.flush()
                os.fsync(new.fileno())
            shutil.copymode(self._path, temporary)
            os.replace(temporary, self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = self._open()


class ResultStream:
    """Results on stdout, which no later run can continue."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def begin(self) -> None:
        """Nothing is dropped."""

    def is_done(self, number: int, digest: str) -> bool:
        """Never."""
        return False

    def write(self, record: dict[str, Any]) -> None:
        """Print one line."""
        self._file.write(_encode(record).decode())
        self._file.flush()

    def finish(self) -> None:
        """Nothing is dropped."""

    def close(self) -> None:
        """Nothing is kept back."""


def _encode(record: dict[str, Any]) -> bytes:
    """A line of JSON in ASCII: valid in every encoding, and without characters that end lines."""
    return json.dumps(record).encode() + b"\n"


def _result(line: bytes) -> dict[str, Any] | None:
    """The record in a line of the file; None for a torn line or another text."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(record, dict) and isinstance(record.get("index"), int)
    return record if whole and isinstance(record.get("digest"), str) else None


def _is_good(record: dict[str, Any]) -> bool:
    """Whether the result is complete, so that its line need not be computed again."""
    samples = record.get("outputs") or [record]
    return not record.get("error") and all(
        sample.get("finish_reason") not in UNFINISHED for sample in samples
    )
