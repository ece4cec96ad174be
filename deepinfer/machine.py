"""What reports say of the machine and of the source that ran: its processor, and the commit."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The source tree, where this package lies in one."""


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str | None:
    """The commit of the source tree, "-modified" where tracked files differ; None where unknown."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return None
    try:
        head = _output(git, "rev-parse", "--short=12", "HEAD")
        changed = _output(git, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("-modified" if changed else "")


def _output(git: str, *arguments: str) -> str:
    command = [git, "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
