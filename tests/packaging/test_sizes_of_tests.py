"""The sizes of tests: whatever is marked `soak` is slow as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITH_SOAK_RUNS = "tests/model/test_random_schedules.py"


def selected(expression: str) -> list[str]:
    """Tests of one file that `pytest -m EXPRESSION` selects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", expression]
    done = subprocess.run([*command, WITH_SOAK_RUNS], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line.startswith(f"{WITH_SOAK_RUNS}::")]


@pytest.mark.slow
def test_soak_runs_are_slow() -> None:
    soak = selected("soak")
    assert soak
    assert selected("soak and slow") == soak
    assert selected("not slow") == selected("not slow and not soak")
