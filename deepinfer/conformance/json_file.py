"""Read a JSON file that a user named, or refuse it with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deepinfer.errors import UsageError

MOST_BYTES = 1 << 28
"""Largest file that is read; a device would never end."""


def read_json(path: str | Path, what: str) -> Any:
    """The document in a file. UsageError where it cannot be read or is no JSON.

    what: what the file is, for the message ("report", "case file").
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return json.loads(data.decode("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise UsageError(f"{what} {str(path)!r} cannot be read: {reason}")
