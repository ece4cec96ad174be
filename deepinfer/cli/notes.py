"""Notes of a command to its user: lines on stderr, beside the results on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from deepinfer.errors import DeepInferError
from deepinfer_launcher import in_json, json_line, printable

__all__ = ["errors_as_json", "in_json", "note"]


def note(text: str, level: str = "info") -> None:
    """Print a line of text on stderr, as a JSON object if logs are JSON."""
    text = printable(text)
    if in_json():
        text = json_line(text, level)
    print(text, file=sys.stderr, flush=True)


@contextmanager
def errors_as_json(enabled: bool) -> Iterator[None]:
    """On an error in the block, print `{"error": ..., "exit_code": ...}` on stdout.

    So stdout is a JSON document in any case. The error is raised further.
    """
    try:
        yield
    except DeepInferError as error:
        if enabled:
            print(json.dumps({"error": str(error), "exit_code": error.exit_code}), flush=True)
        raise
