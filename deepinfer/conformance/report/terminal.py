"""The report for a terminal: one line for each operator, then the failures, then the claim."""

from __future__ import annotations

from deepinfer.conformance.case import Outcome, Verdict
from deepinfer.conformance.document import SuiteReport, by_operator, work_of

MOST_FAILURES = 20
MICRO = 1e6


def terminal_text(report: SuiteReport) -> str:
    environment = report.environment
    lines = [
        f"{report.title}; profile {report.profile}, {report.tier} tier",
        f"{report.device} on {environment['processor']}, {environment['cores']} cores; torch "
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
    lines += ["", *_timings(report), *_failures(report.verdicts)]
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


def _timings(report: SuiteReport) -> list[str]:
    """For each operator the largest timed case: its time, and its share of the device's speed."""
    if report.ceilings is None:
        return []
    ceilings = report.ceilings
    flops = ", ".join(f"{name} {value / 1e9:.3g}" for name, value in ceilings.flops.items())
    lines = [
        f"device: {ceilings.bandwidth / 1e9:.3g} GB/s, GFLOP/s {flops}; the largest case of each "
        "operator, times in microseconds",
        f"{'operator':<18}{'median':>10}{'10 %':>10}{'90 %':>10}{'MB':>9}{'MFLOP':>10}{'share':>8}",
    ]
    for operator, verdicts in by_operator(report.verdicts).items():
        timed = [verdict for verdict in verdicts if verdict.timing is not None]
        if timed:
            largest = max(timed, key=work_of)
            timing, share = largest.timing, report.share(largest)
            assert timing is not None
            assert share is not None
            times = (MICRO * timing.median, MICRO * timing.low, MICRO * timing.high)
            lines.append(
                f"{operator:<18}{times[0]:>10.0f}{times[1]:>10.0f}{times[2]:>10.0f}"
                f"{timing.bytes / 1e6:>9.2f}{timing.flops / 1e6:>10.2f}{share:>8.1%}"
            )
    return [*lines, ""]
