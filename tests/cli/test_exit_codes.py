"""Exit statuses of the installed command, all asked for at once; `test_signals` has 0 and those
of signals."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

DEEPINFER = str(Path(sysconfig.get_path("scripts")) / "deepinfer")
NULL = ["--accelerator", "null", "--allow-null", "--max_model_len", "64"]
GOOD = {"prompt": "x", "max_tokens": 1}


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, tuple[list[str], int, str]]:
    """Arguments, status and what is said, by case."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text(f"{json.dumps(GOOD)}\n{{}}\n")
    return {
        "a request failed": (["generate", str(bad), *NULL], 1, "line 2 failed: a line has one of"),
        "usage": (["backends", "--frobnicate"], 2, "No such option: --frobnicate"),
        "backend": (["run", "x", "--accelerator", "nothing"], 3, "'nothing' is not installed"),
        "checkpoint": (["inspect", "nowhere"], 4, "no such directory, and not a Hub id"),
    }


@pytest.mark.slow
def test_every_status(commands: dict[str, tuple[list[str], int, str]], tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if "DEEPINFER" not in k}
    environment |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "160"}
    running = {
        case: subprocess.Popen(
            [DEEPINFER, *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for case, (arguments, _, _) in commands.items()
    }
    ended = {case: (process.communicate(), process.returncode) for case, process in running.items()}
    for case, (_, status, said) in commands.items():
        (_, errors), got = ended[case]
        assert (case, got) == (case, status), errors
        assert said in errors
        assert "Traceback" not in errors
