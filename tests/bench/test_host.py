"""`host`: steps of running sequences on the null backend, divided into phases."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.bench.host import CLOCKS, Host, Round
from deepinfer.bench.phases import PhaseTimer
from deepinfer.engine import EngineOptions, open_engine
from deepinfer.errors import UsageError

PHASES = ("schedule", "batch", "model", "head", "sample", "commit", "statistics")


def test_every_variant_has_steps_and_phases(small_directory: Path) -> None:
    host = Host(str(small_directory), sequences=(1, 3), steps=2, prompt_tokens=5)
    report = host.run(select_backend("null"))
    for output in ("tokens", "text"):
        for count in (1, 3):
            where = {"sequences": count, "output": output}
            steps = report.find("step", **where).samples
            engine = report.find("engine", **where).samples
            assert len(steps) == len(engine) == 4 * 2
            assert all(0 < own < step for own, step in zip(engine, steps, strict=True))
            assert all(len(report.find(phase, **where).samples) == 4 for phase in PHASES)
    assert report.notes == []
    assert report.environment["backend"]["name"] == "null"


def test_phases_of_a_step_make_up_less_than_the_step(small_directory: Path) -> None:
    options = EngineOptions(max_model_len=64, max_num_seqs=2)
    with open_engine(small_directory, select_backend("null"), options, allow_null=True) as opened:
        host = Host(sequences=(2,), steps=1)
        engine = host.start(opened.runner, 2, "tokens")
        assert [len(s.output) for s in engine.scheduler.running] == [2, 2]
        measured = host.measure(engine)
        assert set(measured.phases) == set(PHASES)
        assert all(seconds > 0 for (seconds,) in measured.phases.values())
        assert sum(seconds for (seconds,) in measured.phases.values()) < measured.steps[0]
        engine.close()


def test_timer_leaves_the_core_as_it_was(small_directory: Path) -> None:
    options = EngineOptions(max_model_len=64, max_num_seqs=1)
    with open_engine(small_directory, select_backend("null"), options, allow_null=True) as opened:
        engine = Host().start(opened.runner, 1, "tokens")
        with PhaseTimer(engine) as timer:
            engine.step()
            assert all(timer.take().values())
            assert not any(timer.take().values())
        engine.step()
        assert not any(timer.take().values())
        engine.close()


def test_clock_is_that_of_the_options(
    small_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setitem(CLOCKS, "cpu", lambda: float(next(ticks)))
    options = EngineOptions(max_model_len=64, max_num_seqs=1)
    with open_engine(small_directory, select_backend("null"), options, allow_null=True) as opened:
        host = Host(sequences=(1,), steps=1, clock="cpu")
        engine = host.start(opened.runner, 1, "tokens")
        measured = host.measure(engine)
        engine.close()
    assert measured.phases == {key: [1000.0] for key in PHASES}
    assert measured.steps == [1000.0 * (2 * len(PHASES) + 1)]


def test_text_decodes_and_sends_every_token(
    small_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepinfer.engine.job import Job

    sent: list[int] = []
    monkeypatch.setattr(Job, "_tell", lambda job, delta: sent.extend(delta.token_ids))
    options = EngineOptions(max_model_len=64, max_num_seqs=3)
    with open_engine(small_directory, select_backend("null"), options, allow_null=True) as opened:
        Host().start(opened.runner, 3, "text").close()
        assert len(sent) == 3 * 2


def test_a_backend_that_computes_is_noted(
    small_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Round([2.0], {key: [0.1] for key in PHASES})
    monkeypatch.setattr(Host, "measure", lambda host, engine: one)
    host = Host(str(small_directory), (1,), ("tokens",), steps=1, prompt_tokens=1)
    assert "reference computes" in host.run(select_backend(REFERENCE)).notes[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequences": (0,)},
        {"steps": 0},
        {"prompt_tokens": 0},
        {"rounds": 3},
        {"output": ("x",)},
        {"clock": "sun"},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is"):
        Host(**wrong)  # type: ignore[arg-type]
