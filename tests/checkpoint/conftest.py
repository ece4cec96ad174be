"""A tiny valid checkpoint, made once and copied for every test that breaks it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.checkpoint.broken import CheckpointFiles
from tests.checkpoint.writer import tiny_config, write_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a valid checkpoint with text, draft and vision; must not be changed."""
    directory = tmp_path_factory.mktemp("tiny")
    write_checkpoint(directory, tiny_config())
    return directory


@pytest.fixture
def files(tiny_checkpoint: Path, tmp_path: Path) -> CheckpointFiles:
    """A private copy of the tiny checkpoint, to be broken."""
    directory = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, directory)
    return CheckpointFiles(directory)
