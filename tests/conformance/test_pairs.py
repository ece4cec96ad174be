"""Entries that one installed backend writes and another one reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.backend.registry import select_backend
from deepinfer.conformance import pairs
from deepinfer.conformance.case import Case, Failure, Outcome, Tier, Verdict
from deepinfer.conformance.profiles import profile_named
from deepinfer.conformance.registry import by_id, selected
from deepinfer.conformance.run import run_suite
from deepinfer.conformance.stateful import STATEFUL
from deepinfer.conformance.subject import Subject
from tests.backend.plugins import forgotten_afterwards, write_distribution, write_plugin

SOURCE = """
from deepinfer.backend import CONTRACT_VERSION, Availability, BackendSpec, Mode, hookimpl

@hookimpl
def deepinfer_backend():
    return BackendSpec("{name}", CONTRACT_VERSION, "dist-{name}", ({modes}))

@hookimpl
def deepinfer_probe():
    return Availability(True, 0, ("found",))

@hookimpl
def deepinfer_create(mode, device):
    from tests.conformance.pair_backends import {backend}
    return {backend}(device)
"""
MODE = 'Mode("hardware", "a chip", "cpu"),'


def write_backend(folder: Path, name: str, backend: str, modes: str = MODE) -> None:
    """An installed backend of a name that is a class of `pair_backends`."""
    write_distribution(folder, f"dist-{name}", {name: f"chip_{name}"})
    source = SOURCE.format(name=name, backend=backend, modes=modes)
    (folder / f"chip_{name}.py").write_text(source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions; the workers of a run see it too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    pairs.partner.cache_clear()
    with forgotten_afterwards():
        yield tmp_path
    pairs.partner.cache_clear()


@pytest.fixture
def two(site: Path) -> Path:
    """Beside the reference, `good`, which is right, and `swapped`, whose nibbles are."""
    write_backend(site, "good", "Good")
    write_backend(site, "swapped", "Swapped")
    return site


def cases_of(name: str) -> list[Case]:
    core = profile_named("core").operators
    found = selected(Tier.QUICK, core, "stateful.pair", chosen=select_backend(name))
    return [check.case for check in found]


def sides(cases: list[Case]) -> set[tuple[object, object]]:
    return {(case.fact("writer"), case.fact("reader")) for case in cases}


def test_every_ordered_pair_that_contains_the_backend(two: Path) -> None:
    others = ["good", "reference"]
    wanted = {pair for other in others for pair in (("swapped", other), (other, "swapped"))}
    cases = cases_of("swapped")
    assert sides(cases) == wanted
    for pair in wanted:
        own = [case for case in cases if (case.fact("writer"), case.fact("reader")) == pair]
        assert {case.fact("store") for case in own} == {"window", "main", "index", "context"}
    for case in cases:
        assert by_id(case.id).case == case
    assert not selected(Tier.QUICK, None, "stateful.pair")  # without a backend there are none


def test_an_unusable_or_broken_partner(
    site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot take part is left out and, where it is a fault, named."""
    write_backend(site, "good", "Good")
    write_distribution(site, "dist-broken", {"broken": "chip_broken"})
    other = 'Mode("emulated", "no chip", "cpu", {"CHIP_EMULATED": "1"}),'
    write_backend(site, "emulated", "Good", other)
    with caplog.at_level(logging.WARNING):
        assert sides(cases_of("good")) == {("good", "reference"), ("reference", "good")}
    assert "no pairs with backend 'broken'" in caplog.text
    assert "no pairs with backend 'emulated': none of its modes" in caplog.text
    monkeypatch.setenv("CHIP_EMULATED", "1")
    assert ("good", "emulated") in sides(cases_of("good"))
    monkeypatch.setenv("DEEPINFER_SKIP_BACKENDS", "emulated,broken")
    assert ("good", "emulated") not in sides(cases_of("good"))


def quick(cases: list[Case], subject: Subject) -> dict[tuple[object, object], list[Verdict]]:
    """The verdicts of bf16 cases by writer and reader."""
    found: dict[tuple[object, object], list[Verdict]] = {}
    for case in cases:
        if case.dtype == "bf16" and case.values in ("normal", "ties"):
            verdict = by_id(case.id).run(subject)
            found.setdefault((case.fact("writer"), case.fact("reader")), []).append(verdict)
    return found


@pytest.mark.slow
def test_mutant_that_swaps_nibbles_both_ways_is_seen_by_pairs_alone(two: Path) -> None:
    """It agrees with itself, so its own histories pass; every pair that contains it fails."""
    subject = Subject.load(select_backend("swapped"))
    for suite in STATEFUL.values():
        for case in suite.grid(Tier.QUICK):
            if dict(case.facts).get("way", "own") == "own":
                assert suite.check(case, subject).passed
                break
    for names, verdicts in quick(cases_of("swapped"), subject).items():
        wrong = {v.case.fact("store") for v in verdicts if not v.passed}
        assert wrong == {"main", "index", "context"}, names
        for verdict in verdicts:
            if not verdict.passed:
                assert (verdict.outcome, verdict.failure) == (Outcome.FAILED, Failure.NUMBERS)
                assert f"written by {names[0]} and read by {names[1]}" in verdict.message


@pytest.mark.slow
def test_pairs_of_right_backends_pass_in_workers(two: Path) -> None:
    """Only the pairs with the faulty one fail in the report of a right one."""
    profile = profile_named("fp4-cache")
    ids = [case.id for case in cases_of("good") if case.values == "ties" or case.dtype == "fp32"]
    report = run_suite(select_backend("good"), profile, Tier.QUICK, ids=ids, workers=1)
    assert report.verdicts
    assert not report.passed()
    for verdict in report.verdicts:
        names = {verdict.case.fact("writer"), verdict.case.fact("reader")}
        right = "swapped" not in names or verdict.case.fact("store") == "window"
        assert verdict.passed == right, str(verdict)


def test_a_pair_of_others_is_refused(site: Path) -> None:
    write_plugin(site, "third")
    write_backend(site, "good", "Good")
    (case, *_) = cases_of("good")
    found = by_id(case.id).run(Subject.load(select_backend("third")))
    assert found.outcome is Outcome.ERROR
    assert "the backend that is tested is 'third'" in found.message
