"""Is an NVIDIA GPU usable here? Answered from files and NVML, without importing torch's CUDA part.

NVML (libnvidia-ml, part of the driver) answers without making a CUDA context, so that asking costs
no device memory and a process may still fork afterwards.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from deepinfer.backend import Availability

RANK = 100
MINIMUM_CAPABILITY = (7, 5)  # the oldest that torch 2.13 built with CUDA 13 has code for
REMEDY = (
    "Install the NVIDIA driver (580 or newer, for CUDA 13) on a machine with an NVIDIA GPU, and"
    " torch 2.13.0 built with CUDA; or set DEEPINFER_ACCELERATOR to another accelerator."
)


def availability(devices: Path = Path("/dev"), torch_folder: Path | None = None) -> Availability:
    """Look for device files, the driver, a torch built with CUDA, and the compute capability.

    devices: where device files lie. torch_folder: the installed torch; None finds it. The reasons
    are sentences: what is missing, or, when nothing is, which GPUs were found.
    """
    missing = []
    if not (any(devices.glob("nvidia[0-9]*")) or (devices / "dxg").exists()):
        missing.append(f"No NVIDIA GPU: there is no device file {devices}/nvidia0.")
    elif os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        missing.append("CUDA_VISIBLE_DEVICES hides every GPU: unset it or name one.")
    if _library("libcuda.so.1") is None:
        missing.append("No NVIDIA driver: the library libcuda.so.1 cannot be loaded.")
    folder = torch_folder or _torch_folder()
    if folder is None:
        missing.append("The Python package torch is not installed.")
    elif not any((folder / "lib").glob("libtorch_cuda*")):
        missing.append(f"The installed torch ({folder}) was built without CUDA.")
    if missing:
        return Availability(usable=False, rank=RANK, reasons=tuple(missing), remedy=REMEDY)
    return _judge(_capabilities())


def _judge(capabilities: Iterable[tuple[int, int]]) -> Availability:
    """Usable if any GPU has the minimum capability, or if NVML could not tell."""
    found = list(capabilities)
    text = ", ".join(f"{major}.{minor}" for major, minor in found) or "unknown"
    if found and max(found) < MINIMUM_CAPABILITY:
        least = ".".join(map(str, MINIMUM_CAPABILITY))
        reason = f"Compute capability {text} is too old: at least {least} is needed."
        return Availability(usable=False, rank=RANK, reasons=(reason,), remedy=REMEDY)
    return Availability(usable=True, rank=RANK, reasons=(f"GPU of compute capability {text}.",))


def _torch_folder() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _capabilities() -> list[tuple[int, int]]:
    """Compute capability of every GPU; empty when NVML is absent or refuses."""
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        found = []
        for index in range(count.value):
            handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            pointers = (ctypes.byref(major), ctypes.byref(minor))
            if nvml.nvmlDeviceGetCudaComputeCapability(handle, *pointers) == 0:
                found.append((major.value, minor.value))
        return found
    finally:
        nvml.nvmlShutdown()
