"""`--perf`: what is timed and counted, and what it is held against."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.backend.registry import select_backend
from deepinfer.conformance import perf
from deepinfer.conformance.case import Case, Outcome, Tier, Timing
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.command import write_report
from deepinfer.conformance.document import read_report
from deepinfer.conformance.perf import Ceilings, timed
from deepinfer.conformance.profiles import PROFILES
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.report import page, terminal_text
from deepinfer.conformance.run import run_suite
from deepinfer.conformance.subject import Subject
from deepinfer.errors import UsageError
from deepinfer_reference.backend import ReferenceBackend

LINEAR = (
    "linear[inputs=64,out=fp32,outputs=48,rows=5,scheme=None,weight=bf16,dtype=bf16,values=normal]"
)
EMBED = "embed[kind=bf16,rows=5,vocabulary=61,width=24,dtype=bf16,values=normal]"
INVALID = (
    "embed[id=-1,kind=bf16,rows=3,vocabulary=61,width=24,dtype=bf16,values=normal,edge=invalid]"
)
ATTEND = (
    "attend[head_dim=32,heads=3,keys=all,layout=decode,length=33,ratio=1,selected=6,sink=normal,"
    "window=8,dtype=bf16,values=normal]"
)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds: nothing here asks how long anything takes."""
    monkeypatch.setattr(perf, "SECONDS", 0.0)
    monkeypatch.setattr(perf, "COPY_BYTES", 1 << 12)
    monkeypatch.setattr(perf, "MATMUL", 16)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of("reference", ReferenceBackend("cpu"))


def work(text: str, subject: Subject) -> tuple[int, int]:
    case = Case.parse(text)
    timing = timed(case, SUITES[case.operator], subject)
    assert timing.rounds >= perf.LEAST_ROUNDS
    assert 0 < timing.low <= timing.median <= timing.high
    return timing.flops, timing.bytes


def test_a_matmul_moves_its_weights_and_multiplies(subject: Subject) -> None:
    flops, moved = work(LINEAR, subject)
    assert flops == 2 * 5 * 64 * 48
    assert moved == 2 * 64 * 48 + 2 * 5 * 64 + 4 * 5 * 48


def test_of_a_table_only_the_rows_that_are_read_count(subject: Subject) -> None:
    flops, moved = work(EMBED, subject)
    assert flops == 0
    assert moved == 8 * 5 + 2 * (2 * 5 * 24)  # ids, rows read, rows written


def test_attention_counts_the_entries_that_are_seen(subject: Subject) -> None:
    flops, _ = work(ATTEND, subject)
    assert flops == 4 * (8 + 6) * 3 * 32


def test_a_share_is_of_the_nearer_ceiling() -> None:
    ceilings = Ceilings(100.0, {"bf16": 50.0, "fp32": 200.0})
    assert ceilings.share(Timing(2.0, 2.0, 2.0, 5, bytes=100, flops=0)) == 0.5
    assert ceilings.share(Timing(2.0, 2.0, 2.0, 5, bytes=100, flops=320)) == 0.8


def test_only_cases_of_one_call_that_passed_are_timed(subject: Subject) -> None:
    assert by_id(LINEAR).run(subject, perf=True).timing is not None
    assert by_id(LINEAR).run(subject).timing is None
    assert by_id(INVALID).run(subject, perf=True).timing is None


def test_what_fails_while_it_is_timed_is_that_cases_error(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Timing:
        raise RuntimeError("clock")

    monkeypatch.setattr("deepinfer.conformance.registry.timed", broken)
    verdict = by_id(LINEAR).run(subject, perf=True)
    assert verdict.outcome is Outcome.ERROR
    assert "timing: RuntimeError: clock" in verdict.message


def test_times_stand_in_every_report(tmp_path: Path) -> None:
    chosen = select_backend("reference")
    report = run_suite(chosen, PROFILES["core"], Tier.QUICK, ids=[LINEAR, EMBED], perf=True)
    text, html = terminal_text(report), page(report)
    assert "GFLOP/s bf16" in text
    assert "share" in text
    assert "<h2>Times</h2>" in html
    assert "id='timings'" in html
    write_report(report, tmp_path)
    document = read_report(tmp_path / "report.json")
    assert set(document["ceilings"]["flops"]) == {"bf16", "fp32", "fp64"}
    assert document["cases"][0]["timing"]["share"] > 0


def test_cases_are_timed_one_at_a_time() -> None:
    with pytest.raises(UsageError, match="perf with 2 workers"):
        run_suite(select_backend("reference"), PROFILES["core"], Tier.QUICK, workers=2, perf=True)
