"""`deepinfer`: the application and its commands, each in a file of its own.

The flags of a command that runs an engine are made from the engine's options, and importing those
takes seconds. So these commands are separate applications, imported only when they are called.
"""

from __future__ import annotations

import typer

from deepinfer.cli import bench
from deepinfer.cli.backends import backends
from deepinfer.cli.conformance import conformance
from deepinfer.cli.env import env
from deepinfer.cli.golden import golden
from deepinfer.cli.inspect import inspect
from deepinfer.cli.invocation import application, invoke
from deepinfer.cli.new_backend import new_backend

ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

app = application(help="Run DeepSeek-V4.1 on any accelerator.", no_args_is_help=True)
app.add_typer(bench.app, name="bench")
for command in (backends, env, inspect, golden, conformance):
    app.command()(command)
app.command("new-backend")(new_backend)


@app.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def run(context: typer.Context) -> None:
    """Answer prompts; the same as run.py, with the same flags (--help lists them)."""
    from deepinfer.cli.run import main as run_main

    raise typer.Exit(run_main(context.args))


@app.command(context_settings=ANY_ARGUMENTS, add_help_option=False)
def generate(context: typer.Context) -> None:
    """Answer a file of prompts, one JSON object a line, in and out (--help lists the flags)."""
    from deepinfer.cli.generate import main as generate_main

    raise typer.Exit(generate_main(context.args))


@app.command("eval", context_settings=ANY_ARGUMENTS, add_help_option=False)
def evaluate(context: typer.Context) -> None:
    """Measure what a checkpoint knows: accuracy and perplexity on held-out data."""
    from deepinfer.cli.evaluate import main as evaluate_main

    raise typer.Exit(evaluate_main(context.args))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status. The launcher handles DeepInferError."""
    return invoke(app, arguments, "deepinfer")
