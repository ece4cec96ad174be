"""The hooks of pre-commit are valid, and download nothing: they are those of the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
CONFIG = Path(__file__).resolve().parents[2] / ".pre-commit-config.yaml"


def test_valid() -> None:
    pytest.importorskip("pre_commit")
    command = [sys.executable, "-m", "pre_commit", "validate-config", CONFIG]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_local_hooks_of_the_environment() -> None:
    repos = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    hooks = repos[0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy"]
    assert {hook["language"] for hook in hooks} == {"system"}
