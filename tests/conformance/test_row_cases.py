"""The cases of dense, hyper and engram operators: the reference passes, and so do other sums."""

from __future__ import annotations

from itertools import islice

import pytest

from deepinfer.backend import OPERATORS
from deepinfer.backend.base import family_of
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import check_case, check_invalid
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import generator_of
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants.other_sums import OtherSums

ON_ROWS = [name for name in OPERATORS if family_of(name) in ("dense", "hyper", "engram")]
FIRST = 6


@pytest.fixture(scope="module")
def reference() -> Subject:
    """The reference, which its oracles judge."""
    return Subject.of("reference", ReferenceBackend("cpu"))


@pytest.mark.parametrize("operator", ON_ROWS)
def test_the_reference_passes(operator: str, reference: Subject) -> None:
    suite = SUITES[operator]
    for case in islice(suite.grid(Tier.QUICK), FIRST):
        verdict = check_case(case, suite, reference, thorough=True)
        assert verdict.passed, str(verdict)
    for invalid in suite.invalid():
        assert check_invalid(invalid, suite, reference).passed


@pytest.mark.parametrize("operator", ON_ROWS)
def test_ids_repeat_their_cases(operator: str) -> None:
    cases = list(SUITES[operator].grid(Tier.FULL))
    assert [Case.parse(case.id) for case in cases] == cases
    assert len({case.id for case in cases}) == len(cases)
    assert {case.tier for case in cases} <= {Tier.QUICK, Tier.FULL}


@pytest.mark.parametrize("operator", ON_ROWS)
def test_the_reference_is_judged_by_a_definition(operator: str) -> None:
    suite = SUITES[operator]
    for case in islice(suite.grid(Tier.QUICK), 3):
        arguments = suite.inputs(case, generator_of(case))
        assert suite.oracle(case, arguments)


@pytest.mark.parametrize("operator", ["project", "logits", "advance", "engram"])
def test_other_sums_pass(operator: str) -> None:
    """Tolerances allow what another order of summation does to every operator inside a step."""
    suite, subject = SUITES[operator], Subject.of("other", OtherSums("cpu"))
    for case in islice(suite.grid(Tier.QUICK), FIRST):
        verdict = check_case(case, suite, subject)
        assert verdict.passed, str(verdict)
