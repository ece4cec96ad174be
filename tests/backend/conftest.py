"""Installed backends of a test, in place of those of this environment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from deepinfer.backend import registry
from deepinfer.backend.hooks import ENTRY_POINT_GROUP
from deepinfer.engine import ModelRunner
from tests.backend.engines import logits
from tests.backend.plugins import FakeEntry
from tests.backend.toys import Toys

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(entry, ...)`: the registry finds these entry points and no others."""

    def install(*entries: FakeEntry) -> None:
        def entry_points(*, group: str) -> list[FakeEntry]:
            assert group == ENTRY_POINT_GROUP
            return list(entries)

        monkeypatch.setattr(registry, "entry_points", entry_points)

    return install


@pytest.fixture(scope="session")
def expected_logits(small_runner: ModelRunner) -> torch.Tensor:
    """What the reference gives for `engines.PROMPT`."""
    return logits(small_runner)


@pytest.fixture
def toys() -> Toys:
    """Backends whose operators only say who ran them."""
    return Toys()
