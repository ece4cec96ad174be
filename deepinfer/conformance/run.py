"""`run_suite`: run a profile on a backend and complete its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing

from deepinfer.backend.registry import Selected
from deepinfer.conformance.call_cases import claimed_cases
from deepinfer.conformance.case import Tier, Verdict
from deepinfer.conformance.document import SuiteReport, environment
from deepinfer.conformance.perf import Ceilings
from deepinfer.conformance.profiles import LATER, PACKING, Claims, Profile, claims
from deepinfer.conformance.registry import Check, selected
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.workers import TIME_LIMIT, Target, check_workers, loaded, run_isolated
from deepinfer.errors import UsageError

OnVerdict = Callable[[Verdict], None]


def run_suite(
    chosen: Selected,
    profile: Profile,
    tier: Tier,
    *,
    pattern: str | None = None,
    ids: Iterable[str] = (),
    workers: int = 0,
    limit: float = TIME_LIMIT,
    perf: bool = False,
    on_verdict: OnVerdict = lambda verdict: None,
) -> SuiteReport:
    """Run the cases of a profile and report on them.

    pattern: of operator names. ids: only these cases. workers: processes; with 0 everything runs in
    this one, without isolation. limit: seconds per case. perf: time the cases that passed, one at a
    time.
    """
    ids = tuple(ids)
    check_workers(workers)
    if perf and workers > 1:
        raise UsageError(f"perf with {workers} workers would time them in each other's way; use 1")
    selected(tier, profile.operators, pattern, ids)  # wrong ids fail before a backend is loaded
    target = Target(chosen.spec.name, chosen.mode.name, chosen.mode.environment, perf)
    first = loaded(target) if workers else None
    try:
        subject = Subject.load(chosen)
        checks = planned(subject, chosen, profile, tier, pattern=pattern, ids=ids)
        report = new_report(subject, chosen, profile, tier)
        report.workers = workers
        report.ceilings = Ceilings.measure(subject.backend) if perf else None
    except BaseException:
        if first is not None:
            first.stop()
        raise
    started = time.monotonic()
    verdicts: Generator[Verdict, None, None]
    if workers:
        verdicts = run_isolated(checks, target, workers, limit, first)
    else:
        verdicts = (check.run(subject, perf) for check in checks)
    with closing(verdicts):
        for verdict in verdicts:
            report.verdicts.append(verdict)
            on_verdict(verdict)
    order = {check.id: place for place, check in enumerate(checks)}
    report.verdicts.sort(key=lambda verdict: order[verdict.case.id])
    report.seconds = time.monotonic() - started
    report.claims = judged(report, subject, chosen, profile)
    return report


def planned(
    subject: Subject,
    chosen: Selected,
    profile: Profile,
    tier: Tier,
    *,
    pattern: str | None = None,
    ids: Iterable[str] = (),
) -> list[Check]:
    """The checks of a run, including those at the bounds of the ranges that the backend claims."""
    ids = tuple(ids)
    checks = selected(tier, profile.operators, pattern, ids, chosen)
    if not ids:
        names = {check.case.operator for check in checks}
        cases = dict.fromkeys(claimed_cases(subject, names, tier))
        checks += [Check(case, True) for case in cases]
    if not checks:
        named = f" whose operator is named like {pattern!r}" if pattern is not None else ""
        raise UsageError(f"profile {profile.name} has no case{named} in the {tier} tier")
    return checks


def new_report(subject: Subject, chosen: Selected, profile: Profile, tier: Tier) -> SuiteReport:
    """A report without verdicts."""
    return SuiteReport(
        chosen.spec.name,
        chosen.mode.name,
        chosen.mode.label,
        profile.name,
        tier,
        tuple(sorted(subject.native)),
        device=str(subject.backend.device),
        environment=environment([chosen.spec.distribution]),
    )


def judged(report: SuiteReport, subject: Subject, chosen: Selected, profile: Profile) -> Claims:
    """The claims that follow from the verdicts of a complete report."""
    undeclared = subject.native - subject.backend.batch_invariant - PACKING - LATER
    left_out: set[str] = set()
    if report.tier is not Tier.QUICK:  # which claims nothing anyway
        left_out = {check.id for check in planned(subject, chosen, profile, report.tier)}
        left_out -= {verdict.case.id for verdict in report.verdicts}
    return claims(
        profile, report.tier, report.verdicts, undeclared & profile.operators, len(left_out)
    )
