"""`deepinfer eval NAME`: measures accuracy and perplexity; prints a table or JSON."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from deepinfer.backend.registry import Selected
from deepinfer.cli.flags import Given, with_engine_options
from deepinfer.cli.invocation import application, invoke
from deepinfer.cli.notes import in_json
from deepinfer.cli.options import Accelerator, Json, Mode, Model, Progress, Revision
from deepinfer.cli.selection import choose
from deepinfer.cli.session import note_summary, open_llm
from deepinfer.engine.llm import LLM
from deepinfer.evaluate import evaluate, heldout, render
from deepinfer.machine import commit

app = application(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Accuracy on held-out questions, and perplexity on held-out text."""


@app.command()
@with_engine_options
def nano(
    given: Given,
    model: Model = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    revision: Revision = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Items of each task and class of distance, and texts, at most; default: all."
        ),
    ] = None,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Recall by distance, questions about stories, sums, JSON, and perplexity.

    Answers are greedy and must be right to the letter. The nano checkpoint has not seen these data.
    Status 1 where a request failed.
    """
    questions, texts = heldout(limit)
    options = given.options()
    selected = choose(accelerator, mode)
    with open_llm(model, revision, selected, options, allow_null=None, progress=progress) as llm:
        evaluation = evaluate(llm, questions, texts, progress=progress and not in_json())
        named = str(llm.engine.runner.checkpoint.directory) if model is None else model
        settings = _settings(llm, selected, named, limit)
        note_summary(llm)
    if json:
        print(json_module.dumps(evaluation.to_dict(settings), indent=1))
    else:
        from rich.console import Console

        Console().print(render(evaluation, f"deepinfer eval nano: {named}"))
    raise typer.Exit(1 if evaluation.errors else 0)


def main(arguments: Sequence[str]) -> int:
    """Run the command on the arguments; returns the exit status."""
    return invoke(app, arguments, "deepinfer eval")


def _settings(llm: LLM, selected: Selected, model: str, limit: int | None) -> dict[str, Any]:
    """Model, backend, options and source version, on which the numbers depend."""
    return {
        "model": model,
        "limit": limit,
        "backend": selected.spec.name,
        "mode": selected.mode.name,
        "numerics": llm.engine.runner.numerics.value,
        "commit": commit(),
        "options": dataclasses.asdict(llm.engine.runner.options),
    }
