"""The report of a pytest run, with the same contents and exit status as the command's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deepinfer.backend.registry import Selected
    from deepinfer.conformance.document import SuiteReport

PROPERTY = "deepinfer-verdict"


class Collector:
    """Keeps the verdicts that items bring back, from this process or from those of xdist.

    choose: the backend and mode that the options of a run name.
    """

    def __init__(self, config: pytest.Config, choose: Callable[[pytest.Config], Selected]) -> None:
        self._config = config
        self._choose = choose
        self._records: list[dict[str, Any]] = []
        self._report: SuiteReport | None = None
        self._started = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the verdict of an item that ran."""
        if report.when == "call":
            found = [text for name, text in report.user_properties if name == PROPERTY]
            self._records += [json.loads(str(text)) for text in found]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge the run: write the report, and fail the session where --native does not hold."""
        option = self._config.option
        if not self._records:
            return
        report = self._report = self._complete()
        if option.deepinfer_report is not None:
            from pathlib import Path

            from deepinfer.conformance.command import write_report

            write_report(report, Path(option.deepinfer_report))
        if session.exitstatus == 0 and not report.passed(option.deepinfer_native):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what the run shows, as the command does."""
        if self._report is not None and self._report.claims is not None:
            terminalreporter.section("conformance")
            terminalreporter.line(self._report.title)
            terminalreporter.line(self._report.claims.sentence())

    def _complete(self) -> SuiteReport:
        from deepinfer.conformance.command import tier_named
        from deepinfer.conformance.document import verdict_from_dict
        from deepinfer.conformance.perf import Ceilings
        from deepinfer.conformance.profiles import profile_named
        from deepinfer.conformance.run import judged, new_report
        from deepinfer.conformance.subject import Subject

        option = self._config.option
        chosen = self._choose(self._config)
        subject = Subject.load(chosen)
        profile = profile_named(option.deepinfer_profile)
        report = new_report(subject, chosen, profile, tier_named(option.deepinfer_tier))
        report.workers = option.deepinfer_workers
        report.verdicts = [verdict_from_dict(record) for record in self._records]
        report.seconds = time.monotonic() - self._started
        report.ceilings = Ceilings.measure(subject.backend) if option.deepinfer_perf else None
        report.claims = judged(report, subject, chosen, profile)
        return report
