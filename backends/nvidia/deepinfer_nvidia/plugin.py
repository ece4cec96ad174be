"""The plugin of the NVIDIA backend: hooks only; entry point `nvidia` of `deepinfer.backends`.

No operator of its own yet: every one runs as the step's default body or as the reference's
primitive, in plain torch operators on the device. Not run on hardware.
"""

from __future__ import annotations

from deepinfer.backend import (
    CONTRACT_VERSION,
    Availability,
    Backend,
    BackendSpec,
    Mode,
    Setting,
    hookimpl,
)
from deepinfer_nvidia.probe import availability

SETTINGS = (
    Setting(
        "CUDA_VISIBLE_DEVICES",
        "",
        "GPUs that the CUDA runtime shows to the process; set to nothing or to -1 it hides all, "
        "and the probe says so.",
    ),
)
HARDWARE = Mode(name="hardware", label="NVIDIA GPU (not run on hardware)", device="cuda")


class NvidiaBackend(Backend):
    """NVIDIA GPUs through torch's CUDA device. Overrides no operator."""


@hookimpl
def deepinfer_backend() -> BackendSpec:
    """Name, contract version, distribution, modes and settings."""
    return BackendSpec(
        name="nvidia",
        contract_version=CONTRACT_VERSION,
        distribution="deepinfer-nvidia",
        modes=(HARDWARE,),
        settings=SETTINGS,
    )


@hookimpl
def deepinfer_probe() -> Availability:
    """Whether a GPU, its driver and a torch built for it are here."""
    return availability()


@hookimpl
def deepinfer_create(mode: str, device: str) -> Backend:
    """The backend on `device` ("cuda", "cuda:1")."""
    return NvidiaBackend(device)
