"""Can torch.compile work here? It writes C++ and needs a compiler for it."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from deepinfer.backend import Availability

RANK = -1
"""Below 0: only used when it is named."""
COMPILER = "g++"


def availability() -> Availability:
    """Look for PyTorch and the compiler that it will call: CXX, or g++."""
    if find_spec("torch") is None:
        return Availability(False, RANK, ("no: PyTorch is not installed",), "pip install torch")
    compiler = os.environ.get("CXX", COMPILER)
    found = shutil.which(compiler)
    if found is None:
        return Availability(
            False,
            RANK,
            (f"no: no C++ compiler: {compiler!r} is not in PATH",),
            f"Install {COMPILER} (on Debian: apt-get install g++), or set CXX to a C++ compiler.",
        )
    return Availability(True, RANK, (f"C++ compiler {found}",))
