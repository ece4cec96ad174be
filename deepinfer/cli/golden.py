"""`deepinfer golden DIR`: compares a backend with numbers of an independent implementation."""

from __future__ import annotations

import itertools
import json as json_module
import sys
from typing import Annotated

import typer

from deepinfer.cli.options import Accelerator, Json, Mode, Progress
from deepinfer.errors import UsageError
from deepinfer.settings import environment


def golden(
    directory: Annotated[
        str | None,
        typer.Argument(help="Directory with golden data; default: DEEPINFER_GOLDEN_DIR."),
    ] = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    compute: Annotated[
        str | None, typer.Option("--compute", help="fp32 or bf16; default: both.")
    ] = None,
    require: Annotated[
        str | None, typer.Option("--require", help='"all": uncovered items count as failed.')
    ] = None,
    progress: Progress = True,
    json: Json = False,
) -> None:
    """Compare a backend with stored numbers of an independent implementation."""
    from deepinfer.cli.progress import counting
    from deepinfer.cli.selection import choose
    from deepinfer.conformance.golden import COMPUTES, Item, run_golden

    if require not in (None, "all"):
        raise UsageError(f'--require is {require!r}; allowed: "all"')
    directory = directory or environment.text(environment.GOLDEN_DIRECTORY)
    if directory is None:
        raise UsageError(f"no directory; give DIR or set {environment.GOLDEN_DIRECTORY}")
    selected = choose(accelerator, mode)
    watched = progress and (
        json or not sys.stdout.isatty()
    )  # without --json the comparisons are printed
    with counting("golden", enabled=watched) as show:
        ended = itertools.count(1)

        def on_item(item: Item) -> None:
            show(f"{next(ended)} comparisons")
            if not json:
                print(item, flush=True)

        report = run_golden(
            directory,
            selected,
            (compute,) if compute else COMPUTES,
            require_all=require == "all",
            strict=environment.flag(environment.STRICT_OPERATORS),
            on_item=on_item,
        )
    if json:
        document = {
            "accelerator": selected.spec.name,
            "mode": selected.mode.name,
            "items": [item.to_dict() for item in report.items],
            "summary": dict(
                zip(("covered", "failed", "not_covered"), report.counts(), strict=True)
            ),
        }
        print(json_module.dumps(document, indent=2))
    else:
        print(report.summary())
    raise typer.Exit(report.exit_code)
