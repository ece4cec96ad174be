"""`deepinfer`: the command and its subcommands."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import click
import typer

from deepinfer.cli.selection import choose
from deepinfer.config import environment
from deepinfer.errors import DeepInferError, UsageError

app = typer.Typer(
    help="Run DeepSeek-V4.1 on any accelerator.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Accelerator = Annotated[
    str | None,
    typer.Option("--accelerator", help="Backend by name; default: DEEPINFER_ACCELERATOR."),
]
Mode = Annotated[str | None, typer.Option("--mode", help="Mode of the backend.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@app.command()
def backends(json: Json = False) -> None:
    """List installed backends: usable or why not, modes, contract versions."""
    from deepinfer.cli.backends import backend_rows, render

    rows = backend_rows(environment.names(environment.SKIP_BACKENDS))
    print(json_module.dumps(rows, indent=2) if json else render(rows))


@app.command()
def golden(
    directory: Annotated[
        str | None,
        typer.Argument(help="Directory laid out like the golden data; or DEEPINFER_GOLDEN_DIR."),
    ] = None,
    accelerator: Accelerator = None,
    mode: Mode = None,
    compute: Annotated[
        str | None, typer.Option("--compute", help="fp32 or bf16; default: both.")
    ] = None,
    require: Annotated[
        str | None, typer.Option("--require", help='"all": uncovered items count as failed.')
    ] = None,
    json: Json = False,
) -> None:
    """Compare a backend with stored numbers of an independent implementation."""
    from deepinfer.conformance.golden import COMPUTES, run_golden

    if require not in (None, "all"):
        raise UsageError(f'--require is {require!r}; allowed: "all"')
    directory = directory or environment.text(environment.GOLDEN_DIRECTORY)
    if directory is None:
        raise UsageError(f"no directory; give DIR or set {environment.GOLDEN_DIRECTORY}")
    selected = choose(accelerator, mode)
    report = run_golden(
        directory,
        selected,
        (compute,) if compute else COMPUTES,
        require_all=require == "all",
        on_item=None if json else lambda item: print(item, flush=True),
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


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def run(context: typer.Context) -> None:
    """Answer prompts; the same as run.py, with the same flags (--help lists them)."""
    from deepinfer.cli.run import main as run_main

    raise typer.Exit(run_main(context.args))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status. DeepInferError is left to the launcher."""
    return invoke(app, arguments, "deepinfer")


def invoke(application: typer.Typer, arguments: list[str] | None, name: str) -> int:
    """Run a typer application without letting it end the process: the exit status."""
    try:
        result = typer.main.get_command(application).main(
            args=arguments, prog_name=name, standalone_mode=False
        )
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except click.exceptions.Abort:
        return 130
    except DeepInferError:
        raise
    return result if isinstance(result, int) else 0
