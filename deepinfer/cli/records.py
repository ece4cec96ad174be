"""Lines of `deepinfer generate`: what an input line asks for, and the file of results.

An input line is a JSON object with one of `prompt` (a text), `prompt_token_ids` and `messages`, and
optionally `id` and sampling parameters, by name beside them or in `sampling_params`. A result line
has the number of its input line and a digest of it, by which a later run finds what is done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deepinfer.engine import SamplingParams
from deepinfer.errors import NotBuiltYetError, RequestError, UsageError

PROMPTS = ("prompt", "prompt_token_ids", "messages")
UNFINISHED = ("abort",)
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Line:
    """An input line: its number from 1, its digest, and what it asks for or why it is wrong."""

    number: int
    digest: str
    id: Any = None
    prompt: Any = None
    params: SamplingParams | None = None
    error: str = ""


def digest_of(data: bytes) -> str:
    """What identifies an input line: the first half of a SHA-256."""
    return hashlib.sha256(data.strip()).hexdigest()[:32]


def read_line(number: int, data: bytes, defaults: Mapping[str, Any]) -> Line:
    """Read an input line. defaults: sampling parameters that the line may override.

    Never raises for what the line holds: `error` says what is wrong.
    """
    digest, own = digest_of(data), None
    try:
        record = _object(data)
        own = record.pop("id", None)
        if own is not None and not isinstance(own, str | int):
            raise RequestError(f"id is {own!r}; allowed: a text or an integer")
        prompt = _prompt(record)
        nested = record.pop("sampling_params", None) or {}
        if not isinstance(nested, dict):
            raise RequestError(f"sampling_params is {nested!r}; allowed: an object")
        twice = sorted(set(nested) & set(record))
        if twice:
            raise RequestError(f"{twice[0]!r} is in the line and in its sampling_params; give one")
        params = _params({**record, **nested}, defaults)
    except (RequestError, NotBuiltYetError) as error:
        return Line(number, digest, own, error=str(error))
    return Line(number, digest, own, prompt, params)


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise RequestError(f"the line has {len(data)} bytes; allowed: {MOST_BYTES}")
    try:
        record = json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise RequestError("the line is no JSON object: it is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the line is no JSON object: {error}") from None
    if not isinstance(record, dict):
        raise RequestError(f"the line is {type(record).__name__}; allowed: a JSON object")
    return record


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _prompt(record: dict[str, Any]) -> Any:
    given = [name for name in PROMPTS if name in record]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise RequestError(f"a line has one of {', '.join(PROMPTS)}; found: {found}")
    prompt = record.pop(given[0])
    wanted = str if given[0] == "prompt" else list
    if not isinstance(prompt, wanted):
        kind = "a text" if wanted is str else "a list"
        raise RequestError(f"{given[0]} is {type(prompt).__name__}; allowed: {kind}")
    if given[0] == "messages" and not all(isinstance(one, dict) for one in prompt):
        raise RequestError("messages is a list of objects with role and content")
    return prompt


def _params(values: dict[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of a line; keys of logit_bias may be texts, as JSON has them."""
    bias = values.get("logit_bias")
    if isinstance(bias, dict):
        try:
            values["logit_bias"] = {int(token): value for token, value in bias.items()}
        except ValueError:
            raise RequestError(f"logit_bias is {bias!r}; allowed: ids and their biases") from None
    for name in PROMPTS:
        values.pop(name, None)
    return SamplingParams.from_names({**defaults, **values})


class ResultFile:
    """The file of results: whole lines, flushed one by one, found again by a later run.

    A run that was killed leaves at most one torn line at the end, which the next one cuts off.
    """

    def __init__(self, path: Path, *, resume: bool, overwrite: bool) -> None:
        """UsageError for a file that is there although neither option says what to do with it."""
        self.path = path
        self.done: dict[int, str] = {}
        if resume and overwrite:
            raise UsageError("--resume and --overwrite contradict each other; give one of them")
        try:
            if path.is_dir():
                raise UsageError(f"output {str(path)!r} is a directory; name a file")
            exists = path.exists() and path.stat().st_size > 0
            if exists and not (resume or overwrite):
                raise UsageError(
                    f"output {str(path)!r} exists; --resume goes on where it ends, --overwrite "
                    "replaces it"
                )
            if exists and resume:
                self._keep_done()
            self._file: IO[bytes] = open(path, "ab" if resume else "wb")
        except OSError as error:
            raise UsageError(f"output {str(path)!r} cannot be written: {error.strerror}") from error

    def is_done(self, number: int, digest: str) -> bool:
        """Has this very line a result already?"""
        return self.done.get(number) == digest

    def write(self, record: dict[str, Any]) -> None:
        """Append one line and hand it to the system."""
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Write everything to the disk."""
        with contextlib.suppress(OSError):  # a pipe or a terminal cannot
            os.fsync(self._file.fileno())
        self._file.close()

    def _keep_done(self) -> None:
        """Keep the results that are whole and good; others are computed again."""
        kept: list[bytes] = []
        dropped = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                record = _result(line)
                if record is None:
                    if line.endswith(b"\n"):
                        raise UsageError(
                            f"line {number} of output {str(self.path)!r} is no result of this "
                            "command; name another file, or use --overwrite"
                        )
                    dropped += 1
                elif record.get("error") or record.get("finish_reason") in UNFINISHED:
                    dropped += 1
                else:
                    kept.append(line)
                    self.done[record["line"]] = record["input"]
        if dropped:
            temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
            with open(temporary, "wb") as file:
                file.writelines(kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)


def _result(line: bytes) -> dict[str, Any] | None:
    """A line of results, or None where it is none or torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("line"), int)
    return record if whole and isinstance(record.get("input"), str) else None


class Stream:
    """Results on stdout: nothing to resume."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def is_done(self, number: int, digest: str) -> bool:
        """Never."""
        return False

    def write(self, record: dict[str, Any]) -> None:
        """Print one line."""
        print(json.dumps(record), file=self._file, flush=True)

    def close(self) -> None:
        """Nothing is kept back."""
