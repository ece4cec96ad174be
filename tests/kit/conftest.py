"""An environment that tests of the kit may install into: it sees all that is installed here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

COMMANDS = {"pip": "-m pip", "pytest": "-m pytest -p no:cacheprovider", "deepinfer": ""}


@dataclass(frozen=True)
class Shell:
    """Runs shell commands in an environment and a folder of its own, offline."""

    environment: Path
    folder: Path

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run lines of sh; the first one that fails ends it."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "PYTHON", "DEEPINFER_", "PYTEST_", "VIRTUAL_ENV"))
        }
        kept |= {
            "PATH": f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            ["sh", "-euc", script],
            cwd=self.folder,
            env=kept | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3600,
        )

    def output(self, script: str, **variables: str) -> str:
        """What the script prints; it must succeed."""
        done = self.run(script, **variables)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout


def new_shell(parent: Path) -> Shell:
    """A virtual environment beside this one: what is installed in it stays in it."""
    environment = parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    places = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    lines = [f"import site; site.addsitedir({path!r})" for path in places]
    (site / "beside.pth").write_text("\n".join([*lines, ""]))
    launch = '-c "import sys, deepinfer_launcher; sys.exit(deepinfer_launcher.main())"'
    for command, words in COMMANDS.items():
        script = environment / "bin" / command
        script.write_text(f'#!/bin/sh\nexec "{python}" {words or launch} "$@"\n')
        script.chmod(0o755)
    folder = parent / "folder"
    folder.mkdir()
    return Shell(environment, folder)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """An environment of the test's own."""
    return new_shell(tmp_path)
