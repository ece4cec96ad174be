"""The plugin of the NVIDIA backend: hooks only; entry point `nvidia` of `deepinfer.backends`.

No operator of its own yet: every one runs as the step's default body or as the reference's
primitive, in plain torch operators on the device. Not run on hardware.
"""

from __future__ import annotations

from deepinfer.backend import CONTRACT_VERSION, Availability, Backend, BackendSpec, Mode, hookimpl
from deepinfer_nvidia.probe import availability

HARDWARE = Mode(name="hardware", label="NVIDIA GPU (not run on hardware)", device="cuda")


class NvidiaBackend(Backend):
    """NVIDIA GPUs through torch's CUDA device. Overrides no operator."""


@hookimpl
def deepinfer_backend() -> BackendSpec:
    """Name, contract version, distribution and modes."""
    return BackendSpec(
        name="nvidia",
        contract_version=CONTRACT_VERSION,
        distribution="deepinfer-nvidia",
        modes=(HARDWARE,),
    )


@hookimpl
def deepinfer_probe() -> Availability:
    """Whether a GPU, its driver and a torch built for it are here."""
    return availability()


@hookimpl
def deepinfer_create(mode: str, device: str) -> Backend:
    """The backend on `device` ("cuda", "cuda:1")."""
    return NvidiaBackend(device)
