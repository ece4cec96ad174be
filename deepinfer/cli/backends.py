"""`deepinfer backends [CHECKPOINT]`: installed backends, and who would run a checkpoint's model."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from deepinfer.cli.options import Json, Revision
from deepinfer.errors import UsageError
from deepinfer.settings import environment


def backends(
    checkpoint: Annotated[
        str | None, typer.Argument(help="Checkpoint directory or Hub id: who would run its model.")
    ] = None,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """List installed backends: usable or why not, modes, contract versions.

    With a checkpoint, also list who would run each operator of its model, in every mode that can be
    asked on this machine. Only headers of the checkpoint are read.
    """
    from deepinfer.cli.installed_backends import backend_rows, render

    skip = environment.names(environment.SKIP_BACKENDS)
    if checkpoint is None:
        if revision is not None:
            raise UsageError("--revision names a revision of a Hub id; give the id as CHECKPOINT")
        rows = backend_rows(skip)
    else:
        from deepinfer.checkpoint import Checkpoint

        with Checkpoint.open(checkpoint, revision=revision) as opened:
            rows = backend_rows(skip, opened)
    print(json_module.dumps(rows, indent=2) if json else render(rows))
