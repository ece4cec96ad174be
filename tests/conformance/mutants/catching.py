"""Which quick case catches a mutant first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType

from deepinfer.backend.base import Backend
from deepinfer.conformance.case import Case, Failure, Outcome, Tier, Verdict
from deepinfer.conformance.registry import checks
from deepinfer.conformance.subject import Subject
from deepinfer_reference.backend import ReferenceBackend


def first_failure(
    mutant: type[Backend],
    operators: str | Iterable[str],
    among: Callable[[Case], bool] = lambda case: True,
) -> Verdict | None:
    """The verdict of the first quick case of some operators that the mutant does not pass.

    None where it passes them all. Operators are tried in the order given. among: cases to try.
    """
    subject = Subject.of("mutant", mutant("cpu"))
    for operator in [operators] if isinstance(operators, str) else operators:
        for check in checks(Tier.QUICK):
            if check.case.operator != operator or not among(check.case):
                continue
            verdict = check.run(subject)
            if not verdict.passed:
                return verdict
    return None


def assert_caught(mutant: type[Backend], operator: str, failure: Failure) -> None:
    """A quick case of the operator fails, and in this way."""
    verdict = first_failure(mutant, operator)
    assert verdict is not None, f"{mutant.__name__} passes every quick case of {operator}"
    assert (verdict.outcome, verdict.failure) == (Outcome.FAILED, failure), str(verdict)
    assert verdict.case.operator == operator


def mutants_of(module: ModuleType, *right: type[Backend]) -> set[type[Backend]]:
    """The backends of a module with a fault: public ones, less those that are `right`."""
    return {
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, ReferenceBackend)
        and one not in (ReferenceBackend, *right)
        and not one.__name__.startswith("_")
    }
