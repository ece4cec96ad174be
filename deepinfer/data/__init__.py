"""What is part of the package: a small random checkpoint, a trained one, and held-out data."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Final

from deepinfer.errors import CheckpointError

ABOUT_NAME: Final = "about.json"
_BUNDLED_NAME: Final = "tiny"
_NANO_NAME: Final = "nano"
_HELDOUT_NAME: Final = "nano_eval.jsonl"


def bundled_checkpoint() -> Path:
    """Directory of the bundled checkpoint: the published format, every architectural part on.

    Its weights are random, so its text means nothing; `scripts/make_checkpoint.py` of the source
    tree makes it. Errors: CheckpointError where the package lies in an archive or lacks the files.
    """
    resource = files(__name__) / _BUNDLED_NAME
    if not isinstance(resource, Path) or not resource.is_dir():
        raise CheckpointError(
            f"{resource}: the bundled checkpoint is not there as a directory; install the wheel "
            "unpacked, or name another checkpoint with --model_name"
        )
    return resource


def nano_checkpoint() -> Path | None:
    """Directory of the trained checkpoint, which `examples/nano` of the source tree makes; None
    where the package does not carry it."""
    resource = files(__name__) / _NANO_NAME
    return resource if isinstance(resource, Path) and resource.is_dir() else None


def heldout_file() -> Path:
    """The held-out items of `deepinfer.evaluate`. Errors: CheckpointError where the package lies in
    an archive."""
    resource = files(__name__) / _HELDOUT_NAME
    if not isinstance(resource, Path):
        raise CheckpointError(f"{resource}: is no file on its own; install the wheel unpacked")
    return resource


def is_random(directory: str | Path) -> bool:
    """Whether a checkpoint says, in about.json beside its config.json, that its weights are random.

    False where it says nothing: published checkpoints have no such file.
    """
    try:
        about = json.loads((Path(directory) / ABOUT_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(about, dict) and about.get("weights") == "random"
