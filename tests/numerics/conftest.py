"""What numeric tests share: the reference with its steps."""

from __future__ import annotations

import pytest

from deepinfer.backend.resolution import Operators, resolve
from deepinfer_reference.backend import ReferenceBackend


@pytest.fixture(scope="session")
def operators() -> Operators:
    backend = ReferenceBackend("cpu")
    return resolve("reference", backend, backend, [])
