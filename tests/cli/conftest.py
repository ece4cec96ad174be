"""The `deepinfer` command in this process and in one of its own, with further backends beside
those installed here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import deepinfer_launcher
from tests.backend.conftest import install
from tests.backend.plugins import forgotten_afterwards, write_distribution

__all__ = ["install"]

ROOT = Path(__file__).resolve().parents[2]
FIRST_PARTY = ("nvidia", "ascend")

Command = Callable[..., subprocess.CompletedProcess[str]]
Launch = Callable[..., "Ended"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that the commands of `command` find installed distributions and modules in."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def command(tmp_path: Path, site: Path) -> Command:
    """`command("backends", "--json", input=..., NAME=value)` runs `deepinfer` as a process."""
    script = tmp_path / "deepinfer"
    script.write_text("import sys, deepinfer_launcher\nsys.exit(deepinfer_launcher.main())\n")
    paths = [site, ROOT, *(ROOT / "backends" / name for name in FIRST_PARTY)]

    def run(*arguments: str, input: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if "DEEPINFER" not in key}
        return subprocess.run(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path,
            env=kept
            | {
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "OMP_NUM_THREADS": "1",
                "NO_COLOR": "1",
                "COLUMNS": "120",
            }
            | variables,
            input=input,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def launch(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Launch]:
    """`launch("backends", "--json", NAME=value)`: the same through the launcher, in this process.

    Much faster; for what needs no fresh process.
    """
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "160")
    for path in [site, *(ROOT / "backends" / name for name in FIRST_PARTY)]:
        monkeypatch.syspath_prepend(str(path))

    def run(*arguments: str, **variables: str) -> Ended:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["deepinfer", *arguments])
        capsys.readouterr()
        status = deepinfer_launcher.main()
        return Ended(status, *capsys.readouterr())

    with forgotten_afterwards():
        yield run


@pytest.fixture
def first_party(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The NVIDIA and Ascend distributions, installed where no device of theirs can be seen."""
    for name in FIRST_PARTY:
        write_distribution(site, f"deepinfer-{name}", {name: f"deepinfer_{name}.plugin"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
