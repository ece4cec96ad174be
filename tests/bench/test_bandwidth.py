"""`bandwidth`: the compiled probe, and the estimate where it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.bench import bandwidth
from deepinfer.bench.bandwidth import Bandwidth
from deepinfer.errors import DeepInferError, UsageError

needs_compiler = pytest.mark.skipif(
    bandwidth.compiler() is None, reason="no C compiler on this machine"
)


@needs_compiler
def test_probe_measures_every_number_of_threads() -> None:
    report = Bandwidth(mib=1, threads=(1, 3), rounds=5, probe="c").run()
    for threads in (1, 3):
        for quantity in ("read", "triad"):
            samples = report.find(quantity, threads=threads, method="C probe").samples
            assert len(samples) == 5
            assert min(samples) > 0
    assert report.notes == []


@needs_compiler
def test_probe_that_fails_says_why() -> None:
    with pytest.raises(DeepInferError, match="threads: 1000; allowed: 1 to 256"):
        Bandwidth(mib=1, threads=(1000,), probe="c").run()


def test_estimate_is_labelled() -> None:
    report = Bandwidth(mib=1, rounds=4, probe="numpy").run()
    assert len(report.find("read", threads=1, method="estimate (numpy, 1 thread)").samples) == 4
    assert "as asked for" in report.notes[0]


def test_without_a_compiler_it_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "COMPILERS", ("no-such-compiler",))
    report = Bandwidth(mib=1, rounds=4).run()
    assert "no compiler; looked for no-such-compiler" in report.notes[0]
    with pytest.raises(UsageError, match="--probe c cannot be used: no compiler"):
        Bandwidth(mib=1, probe="c").run()


def test_without_the_source_it_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "SOURCE", Path("missing.c"))
    assert "an installed package" in Bandwidth(mib=1, rounds=4).run().notes[0]


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"mib": 0}, "--mib"),
        ({"threads": (0,)}, "--threads"),
        ({"rounds": 3}, "--rounds"),
        ({"probe": "rust"}, "--probe"),
        ({"probe": "numpy", "threads": (2,)}, "--threads"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is"):
        Bandwidth(**wrong)  # type: ignore[arg-type]
