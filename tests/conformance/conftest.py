"""Golden directories of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.small_golden import MODEL, SmallGolden


@pytest.fixture
def golden(tmp_path: Path) -> SmallGolden:
    """An empty golden directory."""
    root = tmp_path / "golden"
    root.mkdir()
    return SmallGolden(root)


@pytest.fixture
def with_model(golden: SmallGolden) -> SmallGolden:
    """A golden directory with the checkpoint of one model and no numbers."""
    golden.link(f"{MODEL}/checkpoint")
    return golden
