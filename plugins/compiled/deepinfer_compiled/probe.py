"""Can torch.compile work here? It writes C++ for Python and needs what compiles that."""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from deepinfer.backend import Availability

RANK = -1
"""Below 0: only used when it is named."""
COMPILER = "g++"


def availability() -> Availability:
    """Look for PyTorch, the compiler that it will call (CXX, or g++), and Python's headers."""
    if find_spec("torch") is None:
        return _missing("PyTorch is not installed", "pip install torch")
    compiler = os.environ.get("CXX") or COMPILER
    found = shutil.which(compiler)
    if found is None:
        return _missing(
            f"no C++ compiler: {compiler!r} is not in PATH",
            f"Install {COMPILER} (on Debian: apt-get install g++), or set CXX to a C++ compiler.",
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return _missing(
            f"no headers of Python: {header} is missing",
            "Install them (on Debian: apt-get install python3-dev).",
        )
    return Availability(True, RANK, (f"C++ compiler {found}",))


def _missing(what: str, remedy: str) -> Availability:
    return Availability(False, RANK, (f"no: {what}",), remedy)
