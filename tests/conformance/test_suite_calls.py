"""What the cases of the suite ask of a backend, against what was stored and against what runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from deepinfer.backend import Fact
from deepinfer.backend.base import DECLARATIONS
from deepinfer.backend.trace import shown_facts
from deepinfer.conformance.case import Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import OperatorSuite, generator_of
from deepinfer.conformance.world import World
from deepinfer_reference.backend import ReferenceBackend
from tests.model import stored_calls

TRACED = [suite for name, suite in SUITES.items() if name in DECLARATIONS]
CASES = 12


def test_calls_of_all_cases_are_the_stored_ones() -> None:
    """By operator, so that a failure names those whose cases ask something else."""
    stored = json.loads((stored_calls.STORED / "suite.json").read_text(encoding="utf-8"))
    assert stored_calls.suite_digests() == stored, "see tests/model/stored_calls.py"


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of("reference", ReferenceBackend("cpu"))


@pytest.mark.parametrize("suite", TRACED, ids=[suite.operator for suite in TRACED])
def test_calls_of_a_case_are_those_that_its_arguments_make(
    suite: OperatorSuite, subject: Subject
) -> None:
    """Traced on one row without values, and run as the suite runs it.

    Rows of drafts see a window that is wider than the model's, which a case states.
    """
    for case in list(suite.grid(Tier.QUICK))[:CASES]:
        if dict(case.facts).get("layout") == "drafts":
            continue
        seen: set[tuple[Any, ...]] = set()

        def tap(operator: str, arguments: tuple[Any, ...], result: Any, seen: Any = seen) -> None:
            if DECLARATIONS[operator].facts is not None:
                facts = shown_facts(operator, arguments)
                seen.add((operator, *sorted(facts.items() - _stated(suite, facts))))

        calls = suite.calls(case)
        table = subject.operators(calls).tapped(tap)
        suite.run(table, World(table).place(suite.inputs(case, generator_of(case))))
        stated = set()
        for call in calls:
            inherited = DECLARATIONS[call.operator].inherited
            facts = {name: value for name, value in call.facts if name not in inherited}
            stated.add((call.operator, *sorted(facts.items() - _stated(suite, facts))))
        assert stated == seen, case.id


def _stated(suite: OperatorSuite, facts: Mapping[str, Fact]) -> set[tuple[str, Fact]]:
    """Facts that the suite's cases state in place of what arguments show."""
    return {(name, facts[name]) for name in suite.stated if name in facts}
