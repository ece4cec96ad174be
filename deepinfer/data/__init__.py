"""The checkpoint that is part of the package: small, complete, random; see `bundled_checkpoint`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Final

from deepinfer.errors import CheckpointError

ABOUT_NAME: Final = "about.json"
_BUNDLED_NAME: Final = "tiny"


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


def is_random(directory: str | Path) -> bool:
    """Whether a checkpoint says, in about.json beside its config.json, that its weights are random.

    False where it says nothing: published checkpoints have no such file.
    """
    try:
        about = json.loads((Path(directory) / ABOUT_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(about, dict) and about.get("weights") == "random"
