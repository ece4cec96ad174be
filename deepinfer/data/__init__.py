"""What is part of the package: a small trained checkpoint, a random one, and held-out data."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

from deepinfer.errors import CheckpointError

ABOUT_NAME: Final = "about.json"
LONGEST_TEXT: Final = 200
"""Characters of a statement that is shown."""
MOST_BYTES: Final = 1 << 16
"""Of a file with statements."""
_BUNDLED_NAME: Final = "tiny"
_NANO_NAME: Final = "nano"
_HELDOUT_NAME: Final = "nano_eval.jsonl"


def nano_checkpoint() -> Path:
    """Directory of the trained checkpoint, which is loaded where none is named: the published
    format, every architectural part on, trained on simple English.

    `examples/nano` of the source tree makes it. Errors: CheckpointError where the package lies in
    an archive or lacks the files.
    """
    return _directory(_NANO_NAME, "trained checkpoint")


def bundled_checkpoint() -> Path:
    """Directory of the random checkpoint, for tests and measurements: the published format, every
    architectural part on.

    Its text means nothing; `scripts/make_checkpoint.py` of the source tree makes it. Errors:
    CheckpointError as above.
    """
    return _directory(_BUNDLED_NAME, "bundled checkpoint")


def _directory(name: str, what: str) -> Path:
    resource = files(__name__) / name
    if not isinstance(resource, Path) or not resource.is_dir():
        raise CheckpointError(
            f"{resource}: the {what} is not there as a directory; install the wheel "
            "unpacked, or name another checkpoint with --model_name"
        )
    return resource


def heldout_file() -> Path:
    """The held-out items of `deepinfer.evaluate`. Errors: CheckpointError where the package lies in
    an archive."""
    resource = files(__name__) / _HELDOUT_NAME
    if not isinstance(resource, Path):
        raise CheckpointError(f"{resource}: is no file on its own; install the wheel unpacked")
    return resource


class About(NamedTuple):
    """What a checkpoint of ours says of itself, in about.json beside its config.json.

    is_random: its weights are. text: what it was trained on; empty where it says nothing, as
    published checkpoints do, or nothing that can be shown on a line.
    """

    is_random: bool = False
    text: str = ""


def about(directory: str | Path) -> About:
    """What a checkpoint says of itself; nothing, where the file is missing or no such thing."""
    file = Path(directory) / ABOUT_NAME
    try:
        if not file.is_file() or file.stat().st_size > MOST_BYTES:
            return About()
        said = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return About()
    if not isinstance(said, dict):
        return About()
    weights, text = said.get("weights"), said.get("text")
    if weights != "trained" or not isinstance(text, str):
        return About(is_random=weights == "random")
    return About(text=text if text.isprintable() and len(text) <= LONGEST_TEXT else "")
