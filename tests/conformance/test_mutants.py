"""The case that docs/mutants.md names catches its mutant, and passes without the fault."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import pytest

from deepinfer.conformance.case import Case, Failure, Outcome, Tier
from deepinfer.conformance.profiles import claims, profile_named
from deepinfer.conformance.registry import NAMES, selected
from deepinfer.conformance.run import run_suite
from scripts.make_mutants_page import COMMAND, PAGE, Line, page, read
from tests.conformance.mutants.catalogue import MODULES, MUTANTS, RIGHT, Mutant
from tests.conformance.mutants.catching import (
    backends_of,
    quick_checks,
    subject_of,
    verdict_of,
)
from tests.conformance.small_golden import selected as selected_backend

LINES = {line.id: line for line in read(PAGE.read_text(encoding="utf-8"))}
STALE = f"docs/mutants.md is stale: {COMMAND}"
FAST = {m.operator: m for m in reversed(MUTANTS) if not m.operator.startswith("model.")}
"""The first mutant of each operator; the others, and those of whole models, are slow together."""

mutants = pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant,
            id=f"mutant-{mutant.id}",
            marks=() if FAST.get(mutant.operator) is mutant else pytest.mark.slow,
        )
        for mutant in MUTANTS
    ],
)


@mutants
def test_caught(mutant: Mutant) -> None:
    assert mutant.id in LINES, STALE
    assert LINES[mutant.id].case_id in quick_checks(), STALE
    check = quick_checks()[LINES[mutant.id].case_id]
    verdict = check.run(subject_of(mutant.backend, mutant.operator))
    assert (verdict.outcome, verdict.failure) == (Outcome.FAILED, mutant.failure), str(verdict)
    assert not claims(profile_named(mutant.profile), Tier.QUICK, [verdict]).works
    right = verdict_of(mutant.twin, check.id)
    assert right.passed, str(right)


@cache
def cases_of(profile: str) -> set[str]:
    """What a quick run of a profile runs."""
    return {check.id for check in selected(Tier.QUICK, profile_named(profile).operators)}


@mutants
def test_the_profile_that_claims_the_operator_runs_the_case(mutant: Mutant) -> None:
    assert mutant.id in LINES, STALE
    case_id = LINES[mutant.id].case_id
    assert Case.parse(case_id).operator == mutant.operator
    assert mutant.profile != "full"
    assert case_id in cases_of(mutant.profile)


@pytest.mark.parametrize("profile", sorted({mutant.profile for mutant in MUTANTS}))
def test_a_run_of_the_profile_fails_with_a_mutant_and_works_without(profile: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.profile == profile)
    for backend in (mutant.backend, mutant.twin):
        ids = [LINES[mutant.id].case_id]
        report = run_suite(selected_backend(backend), profile_named(profile), Tier.QUICK, ids=ids)
        assert report.claims is not None
        assert report.claims.works == (backend is mutant.twin)


def test_every_operator_has_a_mutant() -> None:
    """But what depends on where it runs: golden data and other backends have tests of their own."""
    own = {"model.golden", "stateful.pair"}
    assert {mutant.operator for mutant in MUTANTS} == set(NAMES) - own


def test_every_kind_of_failure_is_seen() -> None:
    """But a count: a model that leaves out a claimed operator, which is no fault of a backend."""
    assert {mutant.failure for mutant in MUTANTS} == set(Failure) - {Failure.NONE, Failure.COUNT}


def test_the_page_is_what_the_catalogue_says() -> None:
    """All but the cases, which only running tells: names, operators, faults, failures, profiles."""
    cases = {line.id: line.case_id for line in LINES.values()}
    assert cases.keys() == {mutant.id for mutant in MUTANTS}, STALE
    wanted = page(Line.of(mutant, cases[mutant.id]) for mutant in MUTANTS)
    assert PAGE.read_text(encoding="utf-8") == wanted, STALE


def test_a_page_is_read_as_it_was_written() -> None:
    line = Line("a-fault", "top", "A fault.", "top[rows=1,seed=0]", "numbers", "core")
    assert read(page([line])) == [line]


def test_no_two_mutants_have_one_id() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
def test_every_backend_of_a_module_is_in_the_catalogue(module: ModuleType) -> None:
    tried = {mutant.backend for mutant in MUTANTS if mutant.backend.__module__ == module.__name__}
    assert set(backends_of(module)) - set(RIGHT) == tried
