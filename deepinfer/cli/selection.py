"""Chooses the backend and mode of a command from its flags and the environment."""

from __future__ import annotations

import os
import sys

from deepinfer.backend import Mode
from deepinfer.backend.registry import Selected, select_backend
from deepinfer.cli.notes import note
from deepinfer.logs import configure_logging
from deepinfer.settings import environment
from deepinfer.settings.check import check
from deepinfer.settings.settings import Settings


def choose(accelerator: str | None, mode: str | None, require: bool = True) -> Selected:
    """Choose the backend of a command.

    The process is executed again if the mode needs other environment variables. If no backend was
    named, the choice is announced on stderr. Logging is set up too, and variables without effect on
    this backend are warned of or refused.

    accelerator: the flag, which wins over DEEPINFER_ACCELERATOR. require: False also returns a
    backend that this machine cannot run, for commands that only ask what it supports.
    """
    settings = Settings.from_environment()
    configure_logging(settings)
    name = accelerator or environment.text(environment.ACCELERATOR)
    selected = select_backend(name, mode, environment.names(environment.SKIP_BACKENDS), require)
    if missing := missing_variables(selected.mode):
        arguments = [sys.executable, *sys.orig_argv[1:]]
        sys.stdout.flush()
        os.execve(sys.executable, arguments, {**os.environ, **missing})
    check(settings, selected.spec)
    if name is None:
        note(
            f"accelerator {selected.spec.name} (best available; "
            f"{environment.ACCELERATOR} names another)"
        )
    return selected


def missing_variables(mode: Mode) -> dict[str, str]:
    """The variables, with their values, that a mode needs and this process does not have."""
    wanted = mode.environment.items()
    return {name: value for name, value in wanted if os.environ.get(name) != value}
