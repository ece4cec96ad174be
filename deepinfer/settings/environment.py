"""Read one variable of the process's environment, for code that runs before there are `Settings`.

Kinds and defaults are those of the catalogue. A wrong value of another variable raises no error
here.
"""

from __future__ import annotations

from deepinfer.settings.settings import Settings

ACCELERATOR = "DEEPINFER_ACCELERATOR"
SKIP_BACKENDS = "DEEPINFER_SKIP_BACKENDS"
STRICT_OPERATORS = "DEEPINFER_STRICT_OPERATORS"
MODEL_DIRECTORY = "DEEPINFER_HF_MODEL_DIR"
GOLDEN_DIRECTORY = "DEEPINFER_GOLDEN_DIR"


def text(name: str) -> str | None:
    """The value of a text or path; None where it is unset or empty."""
    return Settings.of(name).text(name)


def flag(name: str) -> bool:
    return Settings.of(name).flag(name)


def names(name: str) -> tuple[str, ...]:
    return Settings.of(name).names(name)
