"""The report as one self-contained HTML page, without scripts or external files."""

from __future__ import annotations

import html
from collections import Counter

from deepinfer.conformance.case import Outcome, Verdict
from deepinfer.conformance.document import SuiteReport, by_operator, work_of

SLOWEST = 20
BUCKETS = 10
TIMED = 100

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0 2rem; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid #8884; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: 0.85em; word-break: break-all; }
.passed { color: #2a7d2a; } .bad { color: #c22; font-weight: 600; }
.bars { display: inline-flex; align-items: flex-end; height: 1.4em; gap: 1px; }
.bars i { width: 0.5em; background: #47a; }
"""


def page(report: SuiteReport) -> str:
    assert report.claims is not None
    environment = report.environment
    facts = [
        ("backend", f"{report.accelerator}, mode {report.mode} ({report.label})"),
        ("profile and tier", f"{report.profile}, {report.tier}"),
        ("result", report.claims.sentence()),
        ("cases", ", ".join(f"{n} {name}" for name, n in sorted(report.counts().items()))),
        ("time", f"{report.seconds:.0f} s, {report.started}, {report.workers} workers"),
        (
            "machine",
            f"{report.device} on {environment['processor']}, {environment['cores']} cores",
        ),
        ("system", f"{environment['system']}, Python {environment['python']}"),
        ("packages", ", ".join(f"{k} {v}" for k, v in environment["packages"].items())),
        ("contract, commit", f"{environment['contract']}, {environment['commit'] or 'unknown'}"),
    ]
    body = [
        f"<h1>{_text(report.title)}</h1>",
        "<table id='facts'>",
        *(f"<tr><th>{_text(k)}</th><td>{_text(v)}</td></tr>" for k, v in facts),
        "</table>",
        "<h2>Operators</h2>",
        _operators(report),
        *_failures(report),
        *_timings(report),
        "<h2>Slowest cases</h2>",
        _slowest(report),
    ]
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{_text(report.title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _operators(report: SuiteReport) -> str:
    rows = [
        "<table id='operators'><tr><th>operator</th><th>provider</th><th class='n'>passed</th>"
        "<th>not passed</th><th>share of the limits used, 0 to 100 %</th>"
        "<th class='n'>largest</th><th class='n'>seconds</th></tr>"
    ]
    for operator, verdicts in by_operator(report.verdicts).items():
        passed = sum(verdict.passed for verdict in verdicts)
        other = Counter(_outcome(verdict) for verdict in verdicts if not verdict.passed)
        shares = [share for verdict in verdicts for share in verdict.used.values()]
        provider = "/".join(sorted({verdict.provider for verdict in verdicts if verdict.provider}))
        rows.append(
            f"<tr><td>{_text(operator)}</td><td>{_text(provider)}</td>"
            f"<td class='n passed'>{passed}</td>"
            f"<td class='bad'>{_text(', '.join(f'{n} {name}' for name, n in other.items()))}</td>"
            f"<td>{_bars(shares)}</td>"
            f"<td class='n'>{max(shares, default=0.0):.0%}</td>"
            f"<td class='n'>{sum(verdict.seconds for verdict in verdicts):.2f}</td></tr>"
        )
    return "".join([*rows, "</table>"])


def _bars(shares: list[float]) -> str:
    """A histogram of shares between 0 and 1; larger ones are in the last bucket."""
    counts = [0] * BUCKETS
    for share in shares:
        counts[min(BUCKETS - 1, int(min(share, 1.0) * BUCKETS))] += 1
    most = max([*counts, 1])
    bars = "".join(f"<i style='height:{100 * n / most:.0f}%' title='{n}'></i>" for n in counts)
    return f"<span class='bars'>{bars}</span>"


def _failures(report: SuiteReport) -> list[str]:
    bad = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASSED]
    if not bad:
        return []
    rows = "".join(_row(verdict) for verdict in bad)
    return [
        "<h2>Not passed</h2>",
        "<table id='failures'><tr><th>outcome</th><th>case</th><th>message</th></tr>",
        f"{rows}</table>",
    ]


def _outcome(verdict: Verdict) -> str:
    """ "failed (numbers)", "timeout"."""
    return f"{verdict.outcome} ({verdict.failure})" if verdict.failure else str(verdict.outcome)


def _row(verdict: Verdict) -> str:
    return (
        f"<tr><td class='bad'>{_text(_outcome(verdict))}</td>"
        f"<td><code>{_text(verdict.case.id)}</code></td><td>{_text(verdict.message)}</td></tr>"
    )


def _timings(report: SuiteReport) -> list[str]:
    """Timed cases, those with most work first."""
    timed = [verdict for verdict in report.verdicts if verdict.timing is not None]
    if report.ceilings is None or not timed:
        return []
    ceilings = report.ceilings
    flops = ", ".join(f"{name} {value / 1e9:.3g} GFLOP/s" for name, value in ceilings.flops.items())
    rows = []
    for verdict in sorted(timed, key=work_of, reverse=True)[:TIMED]:
        timing, share = verdict.timing, report.share(verdict)
        assert timing is not None
        assert share is not None
        cells = (
            f"{1e6 * timing.median:.1f}",
            f"{1e6 * timing.low:.1f} to {1e6 * timing.high:.1f}",
            f"{timing.bytes / 1e6:.3f}",
            f"{timing.flops / 1e6:.3f}",
            f"{share:.1%}",
        )
        numbers = "".join(f"<td class='n'>{cell}</td>" for cell in cells)
        rows.append(f"<tr>{numbers}<td><code>{_text(verdict.case.id)}</code></td></tr>")
    return [
        "<h2>Times</h2>",
        f"<p>Measured on this device: {ceilings.bandwidth / 1e9:.3g} GB/s, {_text(flops)}. The "
        f"{len(rows)} cases with most work.</p>",
        "<table id='timings'><tr><th class='n'>median, us</th><th class='n'>10 to 90 %</th>"
        "<th class='n'>MB</th><th class='n'>MFLOP</th><th class='n'>share</th><th>case</th></tr>",
        f"{''.join(rows)}</table>",
    ]


def _slowest(report: SuiteReport) -> str:
    slow = sorted(report.verdicts, key=lambda verdict: -verdict.seconds)[:SLOWEST]
    rows = "".join(
        f"<tr><td class='n'>{verdict.seconds:.3f}</td><td><code>{_text(verdict.case.id)}</code>"
        "</td></tr>"
        for verdict in slow
    )
    return f"<table id='slowest'><tr><th class='n'>seconds</th><th>case</th></tr>{rows}</table>"


def _text(text: str) -> str:
    return html.escape(text)
