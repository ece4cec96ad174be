"""What the tests of the reference share: the backend, golden vectors, thread counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from deepinfer_reference.backend import ReferenceBackend

VARIABLE = "DEEPINFER_GOLDEN_DIR"


@pytest.fixture(scope="session")
def reference() -> ReferenceBackend:
    return ReferenceBackend("cpu")


@pytest.fixture(scope="session")
def golden_directory() -> Path:
    directory = os.environ.get(VARIABLE)
    if not directory:
        pytest.skip(f"{VARIABLE} is not set: no golden vectors to compare with")
    return Path(directory)


@pytest.fixture(scope="session")
def golden(golden_directory: Path) -> dict[str, Tensor]:
    """Isolated operators: inputs and outputs by name."""
    return load_file(golden_directory / "ops.safetensors")


@pytest.fixture
def restore_threads() -> Iterator[None]:
    """For tests that change the number of threads."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
