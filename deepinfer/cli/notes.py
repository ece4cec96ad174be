"""What a command says to its user beside its results: lines on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from deepinfer.errors import DeepInferError
from deepinfer_launcher import in_json, json_line, printable

__all__ = ["errors_as_json", "in_json", "note"]


def note(text: str, level: str = "info") -> None:
    """One line of text on stderr; a JSON object where logs are."""
    text = printable(text)
    if in_json():
        text = json_line(text, level)
    print(text, file=sys.stderr, flush=True)


@contextmanager
def errors_as_json(enabled: bool) -> Iterator[None]:
    """Where stdout is a JSON document it is one after an error: `{"error": ..., "exit_code": ...}`.

    The error goes on, to stderr and to the exit status.
    """
    try:
        yield
    except DeepInferError as error:
        if enabled:
            print(json.dumps({"error": str(error), "exit_code": error.exit_code}), flush=True)
        raise
