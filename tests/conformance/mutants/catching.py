"""Which case of the quick tier catches a mutant first."""

from __future__ import annotations

from deepinfer.backend.base import Backend
from deepinfer.conformance.case import Tier, Verdict
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import check_case, thorough_cases
from deepinfer.conformance.subject import Subject

THOROUGH_CASES = 3
"""Cases of each operator and edge that the quick tier checks thoroughly."""


def first_failure(mutant: type[Backend], operator: str) -> Verdict | None:
    """The first verdict of an operator's quick cases that did not pass, or None."""
    subject = Subject.of("mutant", mutant("cpu"))
    suite = SUITES[operator]
    cases = list(suite.grid(Tier.QUICK))
    thorough = {case.id for case in thorough_cases(cases, THOROUGH_CASES)}
    for case in cases:
        verdict = check_case(case, suite, subject, thorough=case.id in thorough)
        if not verdict.passed:
            return verdict
    return None
