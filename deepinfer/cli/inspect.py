"""`deepinfer inspect CHECKPOINT`: contents of a checkpoint, and the memory to run it."""

from __future__ import annotations

import json as json_module
from dataclasses import replace
from typing import Annotated

import typer

from deepinfer.cli.options import Accelerator, Json, Mode, Revision


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Checkpoint directory or Hub id.")],
    batch: Annotated[int, typer.Option(help="Sequences of the memory plan.")] = 1,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens per sequence of the memory plan; default: 4096, or fewer where the model "
            "has fewer."
        ),
    ] = None,
    calls: Annotated[bool, typer.Option("--calls", help="List the operator calls.")] = False,
    numerics: Annotated[
        str, typer.Option(help="Numeric mode of the calls: auto, ref or infer.")
    ] = "auto",
    compute: Annotated[
        str, typer.Option(help="Compute precision of the calls: bf16, fp32 or fp64.")
    ] = "bf16",
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Show what a checkpoint holds and what it takes to run it; reads headers only."""
    from deepinfer.checkpoint import Checkpoint
    from deepinfer.cli.inspection import inspect_checkpoint, render
    from deepinfer.cli.requirements import backend_section, calls_section, checkpoint_calls
    from deepinfer.cli.selection import choose
    from deepinfer.engine import EngineOptions

    options = EngineOptions(numerics=numerics, compute=compute, max_num_seqs=max(batch, 1))
    selected = choose(accelerator, mode, require=False)
    with Checkpoint.open(checkpoint, components=None, revision=revision) as opened:
        inspection = inspect_checkpoint(opened, batch=batch, length=length)
        sized = replace(options, max_model_len=inspection.cache.length)
        listed = checkpoint_calls(opened, sized, sized.numerics_for(opened.config))
        sections = [backend_section(selected, opened, listed)]
    if calls:
        sections.append(calls_section(listed))
    if json:
        more = {section.key: section.data for section in sections}
        print(json_module.dumps({**inspection.as_dict(), **more}, indent=2))
    else:
        print(render(inspection, sections))
