"""Entry point of the backend: its hooks. They run at start, so nothing heavy is imported here."""

from __future__ import annotations

from deepinfer.backend import Availability, Backend, BackendSpec, Mode, hookimpl
from deepinfer_compiled.probe import availability

HARDWARE = Mode(name="hardware", label="torch.compile on the CPU", device="cpu")


@hookimpl
def deepinfer_backend() -> BackendSpec:
    """Name, modes, and the version of the operator contract that this backend was written for."""
    return BackendSpec(
        name="compiled",
        contract_version=(0, 1),
        distribution="deepinfer-compiled",
        modes=(HARDWARE,),
    )


@hookimpl
def deepinfer_probe(mode: str | None) -> Availability:
    """Whether this machine can compile."""
    return availability()


@hookimpl
def deepinfer_create(mode: str, device: str) -> Backend:
    """The backend with its operators on `device`, a torch device string."""
    from deepinfer_compiled.backend import CompiledBackend

    return CompiledBackend(device)
