"""Settings from handmade environments, in a process that has not warned yet."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from deepinfer.settings import check as settings_check
from tests.cli.conftest import command, launch, site

__all__ = ["command", "launch", "site"]


@pytest.fixture(autouse=True)
def nothing_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts as a new process does."""
    monkeypatch.setattr(settings_check, "_warned", set())


@pytest.fixture(autouse=True)
def logger_restored() -> Iterator[logging.Logger]:
    """The logger `deepinfer`, put back to how it was."""
    logger = logging.getLogger("deepinfer")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate
