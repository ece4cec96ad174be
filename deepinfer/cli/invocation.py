"""Runs a typer application so that it returns its exit status and does not end the process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from deepinfer.cli.notes import in_json, note
from deepinfer.errors import UsageError


def application(**more: Any) -> typer.Typer:
    """A typer application without shell completion and without typer's formatting of errors."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, **more)


def invoke(app: typer.Typer, arguments: Sequence[str] | None, name: str) -> int:
    """Run a typer application; returns its exit status.

    arguments: None: those of the process. typer prints usage errors; where notes are JSON, they are
    printed as notes. A DeepInferError and the error of a closed pipe are left to the launcher.
    """
    status: object = 0
    command = typer.main.get_command(app)
    given = None if arguments is None else list(arguments)
    try:
        if in_json():
            status = _noted(command, given, name)
        else:
            command.main(args=given, prog_name=name)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        status = stop.code
    sys.stdout.flush()
    return status if isinstance(status, int) else int(status is not None)


def _noted(command: Any, arguments: list[str] | None, name: str) -> object:
    """Run a command and print its usage errors as notes; returns the exit status."""
    try:
        return command.main(args=arguments, prog_name=name, standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's usage errors have one
            raise
        note(error.format_message(), "error")
        return getattr(error, "exit_code", UsageError.exit_code)
