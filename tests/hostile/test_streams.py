"""Standard streams that are closed, full, or of a narrow encoding: a message, never a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = [sys.executable, str(ROOT / "run.py")]
ENV = [
    sys.executable,
    "-c",
    "import sys, deepinfer_launcher; sys.exit(deepinfer_launcher.main())",
    "env",
]


def shell(redirections: str, *command: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A command with its standard streams redirected by a shell, in a clean environment."""
    kept = {key: value for key, value in os.environ.items() if "DEEPINFER" not in key}
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirections}', "sh", *command],
        env=kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
    )


@pytest.mark.parametrize("redirections", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(redirections: str) -> None:
    done = shell(redirections, *ENV)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"DEEPINFER_ACCELERATOR" in done.stdout) == (">&-" not in redirections.split())


@pytest.mark.slow
def test_prompts_from_a_closed_stdin() -> None:
    done = shell("<&-", *RUN, "-", "--json", DEEPINFER_ACCELERATOR="reference")
    assert done.returncode == 0
    assert b"there is no prompt" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("command", [ENV, [*RUN, "--help"], [*RUN, "hi", "--max_tokens", "1"]])
def test_full_output(command: list[str]) -> None:
    done = shell(">/dev/full", *command, DEEPINFER_ACCELERATOR="reference")
    assert done.returncode == 1
    *_, last = done.stderr.decode().splitlines()
    assert last == "error: the output cannot be written: No space left on device"
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.slow
def test_reader_that_has_gone() -> None:
    done = shell("| true", "sh", "-c", 'sleep 0.2; "$@"; echo $? >&2', "sh", *ENV)
    assert done.stderr.decode().split() == ["141"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [[*RUN, "é 🚀", "--max_tokens", "1"], [*RUN, "--help"]])
def test_ascii_output(command: list[str]) -> None:
    variables = {"PYTHONIOENCODING": "ascii", "DEEPINFER_ACCELERATOR": "reference"}
    done = shell("", *command, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert done.stdout
