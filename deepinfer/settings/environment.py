"""Environment variables of the core: their names and how their text is read."""

from __future__ import annotations

import os

ACCELERATOR = "DEEPINFER_ACCELERATOR"
SKIP_BACKENDS = "DEEPINFER_SKIP_BACKENDS"
STRICT_OPERATORS = "DEEPINFER_STRICT_OPERATORS"
MODEL_DIRECTORY = "DEEPINFER_HF_MODEL_DIR"
GOLDEN_DIRECTORY = "DEEPINFER_GOLDEN_DIR"

FALSE = ("", "0", "false", "False")


def text(name: str) -> str | None:
    """The variable's value; None where it is unset or empty."""
    return os.environ.get(name) or None


def flag(name: str) -> bool:
    """A switch: off for "", "0", "false" and "False", on for anything else."""
    return os.environ.get(name, "") not in FALSE


def names(name: str) -> tuple[str, ...]:
    """A comma-separated list; empty parts are dropped."""
    return tuple(part.strip() for part in os.environ.get(name, "").split(",") if part.strip())
