"""What the cases of the suite ask of a backend, against what was stored."""

from __future__ import annotations

import json

import pytest

from tests.model import stored_calls


@pytest.mark.slow
def test_calls_of_all_cases_are_the_stored_ones() -> None:
    """By operator, so that a failure names those whose cases ask something else."""
    stored = json.loads((stored_calls.STORED / "suite.json").read_text(encoding="utf-8"))
    assert stored_calls.suite_digests() == stored, "see tests/model/stored_calls.py"
