"""The suite as pytest items; see `deepinfer.conformance.plugin`."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Outcome
from deepinfer.conformance.registry import Check
from deepinfer.conformance.subject import Subject


def test_conformance(check: Check, conformance_subject: Subject) -> None:
    """A case passes; one that only hardware can run is skipped by that name."""
    verdict = check.run(conformance_subject)
    if verdict.outcome is Outcome.SKIPPED:
        pytest.skip(verdict.message)
    assert verdict.passed, str(verdict)
