"""Throwaway environments that see the dependencies installed here, and handmade wheels."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees the dependencies installed here, and none of our packages."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def run(
        self, *command: str | Path, cwd: Path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this environment and return what it printed and its status."""
        process_variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "PYTHON", "DEEPINFER_", "PYTEST_", "TORCH_"))
        }
        process_variables |= {
            "VIRTUAL_ENV": str(self.folder),
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_NO_COMPILE": "1",
            "OMP_NUM_THREADS": "1",
        } | variables
        return subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=process_variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def pip(self, *arguments: str | Path) -> None:
        """Run pip, offline; it must succeed."""
        done = self.run(self.python, "-m", "pip", *arguments, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, *arguments: str | Path) -> None:
        """Install by path alone."""
        self.pip("install", "--quiet", "--no-deps", *arguments)


def link_dependencies(folder: Path, without: tuple[str, ...]) -> None:
    """Links to everything in this interpreter's site-packages, except what is named and ours."""
    folder.mkdir()
    for place in map(Path, sys.path):
        if place.name not in ("site-packages", "dist-packages") or not place.is_dir():
            continue
        for entry in place.iterdir():
            ours = entry.name.startswith(("deepinfer", "__editable__", "__pycache__"))
            link = folder / entry.name
            if not ours and not entry.name.startswith(without) and not link.exists():
                link.symlink_to(entry)


def write_wheel(folder: Path, name: str, files: dict[str, str], entry_points: str = "") -> Path:
    """A wheel of version 0.1.0 with the given files, as a zip file."""
    info = f"{name}-0.1.0.dist-info"
    contents = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if entry_points:
        contents[f"{info}/entry_points.txt"] = entry_points
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    wheel = folder / f"{name}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    return wheel
