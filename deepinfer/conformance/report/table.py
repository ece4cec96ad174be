"""The report for a terminal: one line an operator, then what failed, then the claim."""

from __future__ import annotations

from deepinfer.conformance.case import Outcome, Verdict
from deepinfer.conformance.document import Report, by_operator

MOST_FAILURES = 20


def table(report: Report) -> str:
    """The whole text."""
    environment = report.environment
    lines = [
        f"{report.title}; profile {report.profile}, {report.tier} tier",
        f"{environment['processor']}, {environment['cores']} cores; torch "
        f"{environment['packages']['torch']}, contract {environment['contract']}",
        "",
        f"{'operator':<18}{'provider':<10}{'passed':>8}{'other':>7}"
        f"{'limit used':>12}{'seconds':>9}",
    ]
    for operator, verdicts in by_operator(report.verdicts).items():
        passed = sum(verdict.passed for verdict in verdicts)
        used = max((share for verdict in verdicts for share in verdict.used.values()), default=0.0)
        seconds = sum(verdict.seconds for verdict in verdicts)
        provider = "/".join(sorted({verdict.provider for verdict in verdicts if verdict.provider}))
        lines.append(
            f"{operator:<18}{provider:<10}{passed:>8}{len(verdicts) - passed:>7}"
            f"{used:>11.0%} {seconds:>8.1f}"
        )
    lines += ["", *_failures(report.verdicts)]
    counts = ", ".join(f"{count} {name}" for name, count in sorted(report.counts().items()))
    lines.append(f"{counts} in {report.seconds:.0f} s")
    assert report.claims is not None
    lines.append(report.claims.sentence())
    return "\n".join(lines)


def _failures(verdicts: list[Verdict]) -> list[str]:
    bad = [verdict for verdict in verdicts if verdict.outcome is not Outcome.PASSED]
    lines = [str(verdict) for verdict in bad[:MOST_FAILURES]]
    if len(bad) > MOST_FAILURES:
        lines.append(f"... and {len(bad) - MOST_FAILURES} more; the report has all of them")
    return [*lines, ""] if lines else []
