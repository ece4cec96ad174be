"""Which quick case catches a mutant, and whether the right backend passes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from deepinfer.backend.base import Backend
from deepinfer.conformance.case import Case, Tier, Verdict
from deepinfer.conformance.properties import is_property
from deepinfer.conformance.registry import Check, checks
from deepinfer.conformance.subject import Subject
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.small_golden import selected


def subject_of(backend: type[Backend], operator: str) -> Subject:
    """A backend as the subject of an operator's cases; whole models need it to be selected."""
    if operator.startswith("model."):
        return Subject.load(selected(backend))
    return Subject.of("mutant", backend("cpu"))


CLEAR = 2.0
"""Share of a limit from which on no order of sums and no machine's `exp` decides who passes."""


def first_failure(
    backend: type[Backend],
    operator: str,
    among: Callable[[Case], bool] = lambda case: True,
    margin: float = 1.0,
) -> Verdict | None:
    """The verdict of the first quick case of an operator that the backend does not pass.

    None where it passes them all. among: cases to try. margin: pass over failures that break a
    limit by less than so many times. Random properties are not tried: the declared cases must do.
    """
    subject = subject_of(backend, operator)
    for check in checks(Tier.QUICK):
        if check.case.operator != operator or is_property(check.case):
            continue
        if among(check.case):
            verdict = check.run(subject)
            if not verdict.passed and not 1 < max(verdict.used.values(), default=0) < margin:
                return verdict
    return None


@cache
def quick_checks() -> dict[str, Check]:
    """All checks of the quick tier by the id of their case."""
    return {check.id: check for check in checks(Tier.QUICK)}


@cache
def verdict_of(backend: type[Backend], case_id: str) -> Verdict:
    """The verdict of a backend on a quick case. Kept: for those that many mutants share."""
    check = quick_checks()[case_id]
    return check.run(subject_of(backend, check.case.operator))


def backends_of(module: ModuleType) -> list[Any]:
    """The public backends that a module defines, in its order."""
    return [
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, ReferenceBackend)
        and one.__module__ == module.__name__
        and not one.__name__.startswith("_")
    ]
