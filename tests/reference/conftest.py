"""What the tests of the reference share: the backend, thread counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from deepinfer_reference.backend import ReferenceBackend


@pytest.fixture(scope="session")
def reference() -> ReferenceBackend:
    return ReferenceBackend("cpu")


@pytest.fixture
def restore_threads() -> Iterator[None]:
    """For tests that change the number of threads."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
