"""Creation of the chosen backend, and of the reference that stands behind it."""

from __future__ import annotations

import pytest
import torch

from deepinfer.backend import Backend, Mode
from deepinfer.backend.registry import reference_for, select_backend
from deepinfer.errors import BackendContractError
from tests.backend.conftest import Install
from tests.backend.plugins import entry, spec


def test_create_gets_the_modes_name_and_device(install: Install) -> None:
    asked = []

    def create(mode: str, device: str) -> Backend:
        asked.append((mode, device))
        return Backend(device)

    meta = spec("chip", modes=(Mode("simulated", "a simulator", "meta"),))
    install(entry("chip", answer=meta, create=create))
    backend = select_backend("chip").create()
    select_backend("chip").create("cpu")
    assert backend.device == torch.device("meta")
    assert asked == [("simulated", "meta"), ("simulated", "cpu")]


def test_create_that_raises_is_reported_with_the_backend(install: Install) -> None:
    def create(mode: str, device: str) -> Backend:
        raise RuntimeError("no queue")

    install(entry("chip", create=create))
    with pytest.raises(
        BackendContractError,
        match=r"'chip' \(distribution dist-chip 1.5, file .*\) raised in deepinfer_create: Runt",
    ) as caught:
        select_backend("chip").create()
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("junk", ["a backend", object(), Backend])
def test_create_that_returns_something_else(install: Install, junk: object) -> None:
    install(entry("chip", create=lambda mode, device: junk))
    with pytest.raises(
        BackendContractError,
        match=r"'chip' \(distribution dist-chip 1.5, file .*\): deepinfer_create returned "
        f"{type(junk).__name__}, expected a deepinfer",
    ):
        select_backend("chip").create()


def test_reference_behind_a_backend_is_on_its_device(install: Install) -> None:
    asked = []

    def create(mode: str, device: str) -> Backend:
        asked.append(device)
        return Backend(device)

    install(entry("chip"), entry("reference", create=create))
    selected = select_backend("chip")
    reference = reference_for(selected, selected.create("meta"))
    assert reference.device == torch.device("meta")
    assert asked == ["meta"]


def test_reference_is_its_own_reference(install: Install) -> None:
    install(entry("reference"))
    selected = select_backend("reference")
    backend = selected.create()
    assert reference_for(selected, backend) is backend
