"""Eager defaults of the device family: a backend may supply none of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deepinfer.backend import Backend, Plan


@pytest.fixture
def backend() -> Backend:
    return Backend("cpu")


@pytest.mark.parametrize("values", [[1, 2], (1, 2), np.array([1, 2], dtype=np.int32)])
def test_tensor_from_host_values(backend: Backend, values: object) -> None:
    made = backend.tensor(values, torch.int64)
    assert (made.dtype, made.tolist()) == (torch.int64, [1, 2])


def test_tensor_does_not_follow_the_hosts_array(backend: Backend) -> None:
    values = np.array([1, 2], dtype=np.int64)
    made = backend.tensor(values, torch.int64)
    values[0] = 9
    assert made.tolist() == [1, 2]


def test_copy_is_done_when_it_returns(backend: Backend) -> None:
    buffer = backend.pinned((2,), torch.int64)
    backend.copy_async(buffer, torch.tensor([3, 4]))
    backend.synchronise()
    assert buffer.tolist() == [3, 4]


def test_services_that_a_device_need_not_have(backend: Backend) -> None:
    assert backend.memory() is None
    assert backend.collectives() is None
    assert backend.capture(lambda: None) is None
    assert type(backend.plan(None)) is Plan  # type: ignore[arg-type]
    with backend.stream():
        pass


def test_workspace_is_kept(backend: Backend) -> None:
    first = backend.workspace("scores", (2, 3), torch.float32)
    assert first.shape == (2, 3)
    assert backend.workspace("scores", (6,), torch.float32).data_ptr() == first.data_ptr()
    assert backend.workspace("scores", (2,), torch.float32).data_ptr() == first.data_ptr()


def test_workspace_grows(backend: Backend) -> None:
    backend.workspace("scores", (2,), torch.float32)
    assert backend.workspace("scores", (3, 4), torch.float32).shape == (3, 4)


def test_workspaces_are_apart_by_name_and_dtype(backend: Backend) -> None:
    made = [
        backend.workspace("scores", (2,), torch.float32),
        backend.workspace("scores", (2,), torch.int32),
        backend.workspace("other", (2,), torch.float32),
    ]
    assert len({tensor.data_ptr() for tensor in made}) == 3


def test_workspaces_of_two_backends_are_apart(backend: Backend) -> None:
    first = backend.workspace("scores", (2,), torch.float32)
    assert Backend("cpu").workspace("scores", (2,), torch.float32).data_ptr() != first.data_ptr()
