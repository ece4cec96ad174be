"""One variable of the process's environment, read now: for what runs before there are `Settings`.

The kinds and defaults are those of the catalogue. Another variable with a wrong value does not
matter here.
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
    """The value of a switch."""
    return Settings.of(name).flag(name)


def names(name: str) -> tuple[str, ...]:
    """The value of a list of names."""
    return Settings.of(name).names(name)
