"""The plugin of the Ascend backend: hooks only; entry point `ascend` of `deepinfer.backends`.

No operator of its own yet: every one runs as the step's default body or as the reference's
primitive, in plain torch operators on the device. Not run on hardware.
"""

from __future__ import annotations

import importlib

from deepinfer.backend import (
    CONTRACT_VERSION,
    Availability,
    Backend,
    BackendSpec,
    Mode,
    Setting,
    hookimpl,
)
from deepinfer_ascend.probe import availability

SETTINGS = (
    Setting(
        "ASCEND_RT_VISIBLE_DEVICES",
        "",
        "NPUs that CANN's runtime shows to the process; set to nothing it hides all, and the probe "
        "says so.",
    ),
    Setting(
        "ASCEND_HOME_PATH",
        "",
        "Where CANN is installed: the probe looks for its runtime library in lib64 below.",
    ),
    Setting(
        "ASCEND_TOOLKIT_HOME",
        "",
        "The same, read where ASCEND_HOME_PATH is unset.",
    ),
)
HARDWARE = Mode(name="hardware", label="Ascend NPU (not run on hardware)", device="npu")


class AscendBackend(Backend):
    """Ascend NPUs through torch_npu's device. Overrides no operator."""


@hookimpl
def deepinfer_backend() -> BackendSpec:
    """Name, contract version, distribution, modes and settings."""
    return BackendSpec(
        name="ascend",
        contract_version=CONTRACT_VERSION,
        distribution="deepinfer-ascend",
        modes=(HARDWARE,),
        settings=SETTINGS,
    )


@hookimpl
def deepinfer_probe() -> Availability:
    """Whether an NPU, CANN's runtime and torch_npu are here."""
    return availability()


@hookimpl
def deepinfer_create(mode: str, device: str) -> Backend:
    """The backend on `device` ("npu", "npu:1"). Imports torch_npu, which adds that device to torch.

    Importing it is left to this hook: torch's own autoloading of it is switched off, since it
    makes `import torch` fail where CANN is absent.
    """
    importlib.import_module("torch_npu")
    return AscendBackend(device)
