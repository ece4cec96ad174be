"""Which quick case catches a mutant first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deepinfer.backend.base import Backend
from deepinfer.conformance.case import Case, Tier, Verdict
from deepinfer.conformance.registry import checks
from deepinfer.conformance.subject import Subject


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
