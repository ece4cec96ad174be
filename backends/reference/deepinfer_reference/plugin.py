"""Entry point of the reference backend: its hooks."""

from __future__ import annotations

from importlib.util import find_spec

from deepinfer.backend import (
    CONTRACT_VERSION,
    Availability,
    Backend,
    BackendSpec,
    Mode,
    hookimpl,
)


@hookimpl
def deepinfer_backend() -> BackendSpec:
    """One mode: PyTorch on the CPU."""
    return BackendSpec(
        name="reference",
        contract_version=CONTRACT_VERSION,
        distribution="deepinfer-core",
        modes=(Mode("hardware", "pure PyTorch, CPU", "cpu"),),
    )


@hookimpl
def deepinfer_probe(mode: str | None) -> Availability:
    """Usable wherever torch is installed."""
    if find_spec("torch") is None:
        return Availability(False, 0, ("PyTorch is not installed",), "pip install torch")
    return Availability(True, 0, ("PyTorch on the CPU",))


@hookimpl
def deepinfer_create(mode: str, device: str) -> Backend:
    """The reference on any torch device."""
    from deepinfer_reference.backend import ReferenceBackend

    return ReferenceBackend(device)
