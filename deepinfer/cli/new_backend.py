"""`deepinfer new-backend`: body of the command."""

from __future__ import annotations

import shlex
from pathlib import Path

from deepinfer.kit import new_backend


def run(name: str, directory: str) -> str:
    """Write the project of a new backend; the files and the next commands as text."""
    files = new_backend(name, Path(directory))
    place = shlex.quote(directory)
    return "\n".join(
        [
            *map(str, files),
            "",
            "next:",
            f"  pip install --no-deps --no-build-isolation -e {place}",
            f"  deepinfer conformance --accelerator {name} --profile core --tier quick",
        ]
    )
