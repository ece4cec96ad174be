"""All checks of the suite: cases of operators, refusals, state across steps, whole models.

Every check has a `Case`, so that all are named, filtered and reported in the same way. An id is
enough to find a check again in another process.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from deepinfer.backend.registry import Selected
from deepinfer.conformance.asked import check_asked
from deepinfer.conformance.case import Case, Outcome, Tier, Verdict
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import check_case, check_invalid, thorough_cases
from deepinfer.conformance.config_cases import config_cases
from deepinfer.conformance.judging import shortened
from deepinfer.conformance.models import GOLDEN, MODELS, ModelSuite
from deepinfer.conformance.pairs import PAIR, Pair, pair_cases, partners
from deepinfer.conformance.perf import timed
from deepinfer.conformance.properties import (
    check_property,
    drawn_case,
    is_property,
    is_search,
    property_cases,
    require_property,
)
from deepinfer.conformance.stateful import STATEFUL, StatefulSuite
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import Invalid
from deepinfer.errors import UsageError

THOROUGH = {Tier.QUICK: 3, Tier.FULL: 20, Tier.SOAK: 20}
"""How many cases of each operator and edge are checked thoroughly."""


STATES: Mapping[str, StatefulSuite | ModelSuite | Pair] = {**STATEFUL, PAIR: Pair(), **MODELS}
"""Suites of more than one call, by the name that their cases have instead of an operator's."""
NAMES = (*SUITES, *STATES)


@dataclass(frozen=True)
class Check:
    """One check to run. thorough: also repeat it, run rows alone, and put NaN into a row."""

    case: Case
    thorough: bool = False
    invalid: Invalid | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        return self.case.id

    def run(self, subject: Subject, perf: bool = False) -> Verdict:
        """Run it; never raises for what the backend does. perf: time it if it passed."""
        verdict = self._checked(subject)
        one_call = self.case.operator in SUITES and not self.invalid and not is_property(self.case)
        if not perf or not one_call or not verdict.passed:
            return verdict
        try:
            return replace(verdict, timing=timed(self.case, SUITES[self.case.operator], subject))
        except Exception as error:
            return replace(verdict, outcome=Outcome.ERROR, message=f"timing: {shortened(error)}")

    def _checked(self, subject: Subject) -> Verdict:
        if self.case.operator in STATES:
            return STATES[self.case.operator].check(self.case, subject)
        suite = SUITES[self.case.operator]
        if is_property(self.case):
            return check_property(self.case, suite, subject)
        if self.invalid is not None:
            return check_invalid(self.invalid, suite, subject)
        return check_case(self.case, suite, subject, thorough=self.thorough)


@cache
def checks(tier: Tier) -> tuple[Check, ...]:
    """All checks of a tier, lower tiers included, in the order of operators."""
    found: list[Check] = []
    for suite in SUITES.values():
        cases = [case for case in suite.grid(tier) if tier.includes(case.tier)]
        if tier.includes(Tier.FULL):
            more = config_cases().get(suite.operator, ())
            cases += [case for case in more if tier.includes(case.tier)]
        thorough = {case.id for case in thorough_cases(cases, THOROUGH[tier])}
        found += [Check(case, case.id in thorough) for case in cases]
        found += [Check(invalid.case, False, invalid) for invalid in suite.invalid()]
        found += [Check(case) for case in property_cases(suite, tier)]
    for state in STATES.values():
        found += [Check(case) for case in state.grid(tier) if tier.includes(case.tier)]
    _distinct(found)
    return tuple(found)


def _distinct(found: Iterable[Check]) -> None:
    seen: set[str] = set()
    for check in found:
        if check.id in seen:
            raise ValueError(f"two cases have the id {check.id}")
        seen.add(check.id)


def selected(
    tier: Tier,
    operators: Iterable[str] | None = None,
    pattern: str | None = None,
    ids: Iterable[str] = (),
    chosen: Selected | None = None,
) -> list[Check]:
    """The checks of a tier, restricted to operators, to a pattern of their names, or to ids.

    chosen: the backend, whose pairs with the other installed ones are among the checks.
    UsageError for a pattern that no operator has, and for an id that is no case of the suite. An id
    that is in no grid is built all the same, so that a case can be varied by hand; it is checked
    thoroughly.
    """
    ids = list(ids)
    if ids:
        return list(dict.fromkeys(asked(text) for text in ids))
    wanted = set(NAMES) if operators is None else set(operators)
    if pattern is not None:
        named = set(fnmatch.filter(NAMES, pattern))
        if not named:
            raise UsageError(
                f"no operator of the suite is named like {pattern!r}; there are: "
                f"{', '.join(sorted(NAMES))}"
            )
        wanted &= named
    found = [check for check in checks(tier) if check.case.operator in wanted]
    if chosen is not None and PAIR in wanted:
        found += [Check(case) for case in pair_cases(tier, chosen.spec.name, partners(chosen))]
    return found


def asked(text: str) -> Check:
    """The check of an id that a user gave; UsageError where the suite cannot make its case."""
    check = by_id(text)
    case = check.case
    if case.operator == PAIR:
        check_asked(case, pair_cases(Tier.FULL, "one", ["another"]))
    elif case.operator in STATES:
        check_asked(case, [*STATES[case.operator].grid(Tier.FULL), *_unlisted(case.operator)])
    else:
        suite = SUITES[case.operator]
        if is_property(case):
            require_property(case, suite)
            case = drawn_case(case)
        if not is_search(case):
            known = [*suite.grid(Tier.FULL), *config_cases().get(suite.operator, ())]
            check_asked(case, [*known, *(invalid.case for invalid in suite.invalid())])
    return check


def _unlisted(name: str) -> list[Case]:
    """Cases that no grid lists here: golden data are listed only where a variable names some."""
    dtypes = ("fp32", "bf16") if name == GOLDEN else ()
    return [Case.of(name, {}, dtype=dtype, numerics="ref") for dtype in dtypes]


def by_id(text: str) -> Check:
    """The check of an id, thorough; UsageError where the id names no operator of the suite."""
    case = Case.parse(text)
    if case.operator not in NAMES:
        raise UsageError(
            f"case {text!r}: no operator {case.operator!r} in the suite; there are: "
            f"{', '.join(sorted(NAMES))}"
        )
    if case.operator in STATES:
        return Check(case)
    if is_property(case):
        return Check(case)
    for invalid in SUITES[case.operator].invalid():
        if invalid.case == case:
            return Check(case, False, invalid)
    return Check(case, True)
