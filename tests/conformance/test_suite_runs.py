"""The suite around its cases: ids, isolation, claims, reports, state across steps."""

from __future__ import annotations

import html
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer.backend.registry import select_backend
from deepinfer.conformance import models, workers
from deepinfer.conformance.case import Case, Failure, Outcome, Tier, Verdict
from deepinfer.conformance.command import compare, write_report
from deepinfer.conformance.document import SuiteReport, verdict_from_dict, verdict_to_dict
from deepinfer.conformance.profiles import PROFILES, Profile, claims, profile_named
from deepinfer.conformance.registry import NAMES, Check, by_id, checks, selected
from deepinfer.conformance.report import page, terminal_text
from deepinfer.conformance.run import run_suite
from deepinfer.conformance.stateful import STATEFUL
from deepinfer.conformance.subject import Subject
from deepinfer.errors import UsageError
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.small_golden import selected as selected_backend

CASE = "rms_norm[eps=1e-20,rows=1,width=64,dtype=bf16,values=normal,edge=one,seed=0]"


def test_ids_paste_back() -> None:
    for check in checks(Tier.QUICK)[::37]:
        assert Case.parse(check.id) == check.case
        assert by_id(check.id).case == check.case


@pytest.mark.parametrize(
    "text", ["", "rms_norm", "rms_norm[rows]", "nothing[rows=1]", "rms_norm[rows=1,seed=x]"]
)
def test_what_is_no_case(text: str) -> None:
    with pytest.raises(UsageError, match="case"):
        by_id(text)


def test_patterns_and_profiles_choose_operators() -> None:
    names = {check.case.operator for check in selected(Tier.QUICK, None, "attend*")}
    assert names == {"attend", "attend_output"}
    sampling = {
        check.case.operator for check in selected(Tier.QUICK, PROFILES["sampling"].operators)
    }
    assert sampling == {"mask", "process", "sample", "top_logprobs"}
    with pytest.raises(UsageError, match="named like 'zzz'"):
        selected(Tier.QUICK, None, "zzz")
    with pytest.raises(UsageError, match="profile is 'zzz'; allowed: core"):
        profile_named("zzz")
    for profile in PROFILES.values():
        assert profile.key <= profile.operators


def verdict(outcome: Outcome = Outcome.PASSED, provider: str = "native", **more: Any) -> Verdict:
    return Verdict(Case.parse(CASE), outcome, provider, **more)


def test_claims() -> None:
    core = PROFILES["core"]
    assert not claims(core, Tier.FULL, []).works  # nothing ran, nothing is shown
    assert "no claim" in claims(core, Tier.QUICK, [verdict()]).sentence()
    good = claims(core, Tier.FULL, [verdict()])
    assert good.works
    assert good.native
    assert good.sentence().startswith("claim: profile core works")
    assert not claims(core, Tier.FULL, [verdict(), verdict(Outcome.UNSUPPORTED)]).works
    fallen = claims(core, Tier.FULL, [verdict(provider="fallback")])
    assert fallen.works
    assert not fallen.native
    full = claims(PROFILES["full"], Tier.FULL, [verdict()])
    assert full.works
    assert not full.native
    assert "attend" in full.missing_native


@pytest.mark.slow
def test_a_part_of_a_profile_claims_nothing() -> None:
    part = claims(PROFILES["core"], Tier.FULL, [verdict()], left_out=3)
    assert part.sentence().endswith("3 of its cases not run: no claim")
    for pattern, ids in (("mask", ()), (None, (CASE,))):
        chosen = select_backend("reference"), PROFILES["sampling"], Tier.FULL
        report = run_suite(*chosen, pattern=pattern, ids=ids)
        assert report.claims is not None
        assert report.claims.works
        assert "not run: no claim" in report.claims.sentence()


@pytest.mark.slow
def test_a_whole_run_of_the_full_tier_claims() -> None:
    profile = Profile("masks", "one operator", frozenset({"mask"}), frozenset({"mask"}))
    report = run_suite(select_backend("reference"), profile, Tier.FULL)
    assert report.claims is not None
    assert report.claims.sentence() == "claim: profile masks works, 1 operators native; native"


def test_only_operators_are_counted_as_native() -> None:
    case = Case.of("stateful.chunks", {"chunk": 1})
    found = claims(PROFILES["core"], Tier.FULL, [Verdict(case, Outcome.PASSED, "native")])
    assert found.native_operators == ()


def test_batch_invariance_must_be_declared() -> None:
    profile = PROFILES["batch-invariant"]
    assert claims(profile, Tier.FULL, [verdict()]).works
    found = claims(profile, Tier.FULL, [verdict()], ["linear"])
    assert not found.works
    assert "not declared: linear" in found.sentence()
    assert claims(PROFILES["core"], Tier.FULL, [verdict()], ["linear"]).works


def report(*verdicts: Verdict) -> SuiteReport:
    made = SuiteReport("chip", "hardware", "a <chip>", "core", Tier.QUICK, ("rms_norm",))
    made.verdicts = list(verdicts)
    made.claims = claims(PROFILES["core"], Tier.QUICK, verdicts)
    return made


def test_reports_survive_json_and_are_escaped(tmp_path: Path) -> None:
    bad = verdict(
        Outcome.FAILED,
        failure=Failure.NUMBERS,
        message="<script>",
        used={"out:ulp": float("inf")},
    )
    assert verdict_from_dict(json.loads(json.dumps(verdict_to_dict(bad)))) == bad
    other = replace(verdict(used={"out:ulp": 0.5}), case=Case.parse(CASE.replace("=1,", "=2,")))
    made = report(other, bad)
    shown = page(made)
    assert "<script>" not in shown
    assert "a &lt;chip&gt;" in shown
    assert "http" not in shown
    assert "<td class='bad'>1 failed (numbers)</td>" in shown
    text = terminal_text(made)
    assert "failed (numbers) rms_norm[" in text
    assert "profile core: does not work" in text
    write_report(made, tmp_path / "new")
    same, equal = compare(*[str(tmp_path / "new" / "report.json")] * 2)
    assert equal
    assert "passes there" in same
    with pytest.raises(UsageError, match="cannot be read"):
        compare(str(tmp_path / "none"), str(tmp_path / "none"))


@pytest.mark.slow
def test_a_report_states_tier_mode_machine_and_the_plugins_version() -> None:
    made = run_suite(selected_backend(), PROFILES["core"], Tier.QUICK, ids=[CASE])
    assert made.environment["packages"]["dist-chip"] == "not installed"
    assert made.environment["packages"]["deepinfer-core"] != "not installed"
    for text in (terminal_text(made), page(made)):
        assert "quick" in text
        assert "mode hardware" in text
        assert f"cpu on {made.environment['processor']}" in html.unescape(text)


def test_what_got_worse_is_said(tmp_path: Path) -> None:
    for name, outcome in (("a", Outcome.PASSED), ("b", Outcome.ERROR)):
        write_report(report(verdict(outcome)), tmp_path / name)
    text, equal = compare(str(tmp_path / "a" / "report.json"), str(tmp_path / "b" / "report.json"))
    assert not equal
    assert "passed -> error: rms_norm[" in text


def test_a_report_without_anything_native_is_the_references() -> None:
    title = report(verdict(provider="fallback")).title
    assert title == "reference on cpu (backend chip, mode hardware: nothing native)"
    assert report(verdict()).title.startswith("backend chip")


CRASH = """
import os, time
from deepinfer_reference.backend import ReferenceBackend
def rms_norm(self, x, weight, eps):
    if x.shape[0] == 1:
        os.abort()
    if x.shape[0] == 15:
        time.sleep(1000)
    return plain(self, x, weight, eps)
plain, ReferenceBackend.rms_norm = ReferenceBackend.rms_norm, rms_norm
"""


@pytest.mark.slow
def test_a_crash_and_a_hang_are_outcomes_of_their_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is replaced, and the cases after them run."""
    (tmp_path / "sitecustomize.py").write_text(CRASH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    chosen = [
        Check(Case.of("rms_norm", {"rows": rows, "width": 64, "eps": 1e-6}))
        for rows in (2, 1, 15, 3)
    ]
    target = workers.Target("reference", "hardware", {})
    found = {v.case.size("rows"): v for v in workers.run_isolated(chosen, target, 1, limit=20)}
    assert {rows: str(v.outcome) for rows, v in found.items()} == {
        2: "passed",
        1: "error",
        15: "timeout",
        3: "passed",
    }
    assert signal.Signals.SIGABRT.name in found[1].message
    assert "no verdict after 20 s" in found[15].message


def first_cases(name: str) -> list[Case]:
    cases = list(STATEFUL[name].grid(Tier.QUICK))
    return [next(case for case in cases if case.fact("ratio") == ratio) for ratio in (1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", STATEFUL)
def test_state_of_the_reference(name: str) -> None:
    subject = Subject.of("reference", ReferenceBackend("cpu"))
    for case in first_cases(name):
        found = STATEFUL[name].check(case, subject)
        assert found.passed, str(found)


@pytest.mark.slow
def test_a_model_must_call_what_the_backend_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled model reaches all primitives of the reference; one it never calls is named."""
    subject = Subject.load(select_backend("reference"))
    case = Case.of("model.bundled", {"length": 7}, dtype="bf16", numerics="ref")
    found = by_id(case.id).run(subject)
    assert found.passed, str(found)
    expected = models._expected
    monkeypatch.setattr(models, "_expected", lambda engine: [*expected(engine), "mask"])
    found = by_id(case.id).run(subject)
    assert (found.failure, found.outcome) == (Failure.COUNT, Outcome.FAILED)
    assert found.message.endswith("never called by the model: mask")


def test_every_name_has_checks() -> None:
    found = {check.case.operator for check in checks(Tier.QUICK)}
    assert set(NAMES) - found <= {"model.golden", "stateful.pair"}  # as installed
