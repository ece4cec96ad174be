"""Options that several commands share. A command uses one as the type of a parameter."""

from __future__ import annotations

from typing import Annotated

import typer

MODEL_NAMES = ("--model_name", "--model-name", "--model")

Accelerator = Annotated[
    str | None,
    typer.Option("--accelerator", help="Backend by name; default: DEEPINFER_ACCELERATOR."),
]
AllowNull = Annotated[
    bool,
    typer.Option(
        "--allow_null/--no_allow_null",
        "--allow-null/--no-allow-null",
        help="Accept a backend that computes nothing.",
    ),
]
Grace = Annotated[
    float, typer.Option("--grace", help="Seconds between a signal and the end of the process.")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Mode = Annotated[str | None, typer.Option("--mode", help="Mode of the backend.")]
_MODEL_HELP = "Checkpoint directory or Hub id; default: DEEPINFER_HF_MODEL_DIR, else nano."
ModelName = Annotated[str | None, typer.Option(*MODEL_NAMES, help=_MODEL_HELP)]
Model = Annotated[str | None, typer.Option(MODEL_NAMES[-1], *MODEL_NAMES[:-1], help=_MODEL_HELP)]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Bars on a terminal.")]
Revision = Annotated[str | None, typer.Option(help="Revision of a Hub id.")]
