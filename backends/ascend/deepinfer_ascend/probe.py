"""Is an Ascend NPU usable here? Answered from files alone, without importing torch_npu.

torch_npu cannot even be imported where CANN's libraries are absent, and takes seconds where they
are present.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from deepinfer.backend import Availability

RANK = 100
RUNTIME = "libascendcl.so"
TOOLKIT_FOLDERS = (  # CANN's default places
    "/usr/local/Ascend/ascend-toolkit/latest/lib64",
    "/usr/local/Ascend/cann/lib64",
)
REMEDY = (
    "Install the Ascend driver and CANN 9.2, load its environment (source set_env.sh of CANN),"
    " and install torch_npu 2.13.0 by the ordinary package client; or set DEEPINFER_ACCELERATOR to"
    " another accelerator."
)


def availability(
    devices: Path = Path("/dev"), environment: Mapping[str, str] | None = None
) -> Availability:
    """Look for device files, CANN's runtime library and the package torch_npu.

    devices: where device files lie. environment: the process's variables (None: os.environ). The
    reasons are sentences: what is missing, or, when nothing is, how many NPUs were found.
    """
    variables = os.environ if environment is None else environment
    found = len(list(devices.glob("davinci[0-9]*")))
    missing = []
    if not found:
        missing.append(f"No Ascend NPU: there is no device file {devices}/davinci0.")
    elif variables.get("ASCEND_RT_VISIBLE_DEVICES") == "":
        missing.append("ASCEND_RT_VISIBLE_DEVICES hides every NPU: unset it or name one.")
    if not any((folder / RUNTIME).exists() for folder in _library_folders(variables)):
        missing.append(
            f"No CANN runtime: {RUNTIME} is neither in LD_LIBRARY_PATH, nor below ASCEND_HOME_PATH,"
            " nor where CANN installs itself."
        )
    if importlib.util.find_spec("torch_npu") is None:
        missing.append("The Python package torch_npu is not installed.")
    if missing:
        return Availability(usable=False, rank=RANK, reasons=tuple(missing), remedy=REMEDY)
    return Availability(usable=True, rank=RANK, reasons=(f"{found} Ascend NPU(s).",))


def _library_folders(variables: Mapping[str, str]) -> list[Path]:
    folders = [Path(name) for name in variables.get("LD_LIBRARY_PATH", "").split(":") if name]
    home = variables.get("ASCEND_HOME_PATH") or variables.get("ASCEND_TOOLKIT_HOME")
    if home:
        folders.append(Path(home) / "lib64")
    return [*folders, *map(Path, TOOLKIT_FOLDERS)]
