"""The suite as pytest items; see `deepinfer.conformance.plugin`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from deepinfer.conformance.case import Outcome, Verdict
from deepinfer.conformance.document import verdict_to_dict
from deepinfer.conformance.pytest_report import PROPERTY
from deepinfer.conformance.registry import Check


def test_conformance(
    check: Check,
    run_check: Callable[[Check], Verdict],
    record_property: Callable[[str, object], None],
) -> None:
    """A case passes. One that only other hardware can run is skipped, with the reason."""
    verdict = run_check(check)
    record_property(PROPERTY, json.dumps(verdict_to_dict(verdict)))
    if verdict.outcome is Outcome.SKIPPED:
        pytest.skip(verdict.message)
    assert verdict.passed, str(verdict)
