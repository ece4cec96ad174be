"""The HTML report as a browser shows it; needs Chromium (Debian: apt-get install chromium)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deepinfer.conformance.case import Case, Failure, Outcome, Tier, Timing, Verdict
from deepinfer.conformance.document import SuiteReport
from deepinfer.conformance.perf import Ceilings
from deepinfer.conformance.profiles import PROFILES, claims
from deepinfer.conformance.report import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--enable-logging=stderr",
]
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"


def report() -> SuiteReport:
    made = SuiteReport("chip", "hardware", "a <chip> & more", "core", Tier.QUICK, ("rms_norm",))
    timing = Timing(1e-3, 9e-4, 2e-3, 20, 1000, 2000)
    for number in range(40):
        case = Case.of("rms_norm", {"rows": number, "width": 64})
        used = {"out:ulp": number / 40}
        made.verdicts.append(Verdict(case, Outcome.PASSED, "native", used=used, timing=timing))
    case = Case.of("linear", {"rows": 1})
    message = "<img src=x onerror=alert(1)>"
    made.verdicts.append(Verdict(case, Outcome.FAILED, "native", Failure.NUMBERS, message))
    made.claims = claims(PROFILES["core"], Tier.QUICK, made.verdicts)
    made.ceilings = Ceilings(1e9, {"bf16": 1e9})
    return made


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_page_is_shown_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    assert BROWSER is not None
    path = tmp_path / "report.html"
    path.write_text(page(report()), encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER,
            *FLAGS,
            OFFLINE,
            f"--user-data-dir={tmp_path / 'user'}",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    shown = done.stdout
    assert "CONSOLE" not in done.stderr  # nothing was refused, nothing failed to load
    assert "<img" not in shown
    assert "&lt;img src=x" in shown
    tables = re.findall(r"<table id=\"(\w+)\"", shown)
    assert tables == ["facts", "operators", "failures", "timings", "slowest"]
    operators = shown.partition('<table id="operators"')[2].partition("</table>")[0]
    assert [text.split("<")[0] for text in operators.split("<tr><td>")[1:]] == [
        "rms_norm",
        "linear",
    ]
    assert operators.count("<i style=") == 20  # a histogram of ten bars for each
    assert shown.rstrip().endswith("</html>")
