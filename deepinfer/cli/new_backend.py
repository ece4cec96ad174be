"""`deepinfer new-backend NAME DIR`: the project of a new backend, from a template."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def new_backend(
    name: Annotated[str, typer.Argument(help="Name of the backend, a lower-case identifier.")],
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory of the project; absent or empty.")
    ],
) -> None:
    """Write the project of a new backend, which can be installed and has one operator."""
    from deepinfer.kit import new_backend as write_project

    for file in write_project(name, Path(directory)):
        print(file)
    print("\nnext:")
    print(f"  pip install --no-deps --no-build-isolation -e {shlex.quote(directory)}")
    print(f"  deepinfer conformance --accelerator {name} --profile core --tier quick")
