"""`context`: steps of two lengths, the operators that are compared, the ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.bench.context import (
    Context,
    call_seconds,
    decoding_engine,
    index_calls,
    step_seconds,
)
from deepinfer.engine import ModelRunner
from deepinfer.errors import UsageError
from tests.engine.runs import nothing_is_held


@pytest.mark.slow
def test_curves_and_ratios_of_every_length(small_directory: Path) -> None:
    report = Context(str(small_directory), (32, 48)).run(select_backend(REFERENCE))
    for quantity in ("decode step", "index operators"):
        short, long = (report.find(quantity, context=length) for length in (32, 48))
        assert len(short.samples) == len(long.samples) == 4
        times = [b / a for a, b in zip(short.samples, long.samples, strict=True)]
        assert report.find(f"{quantity}, times", context=48).samples == pytest.approx(times)
    assert len(report.find("growth, step : index", context=48).samples) == 4
    assert report.settings["lengths"] == (32, 48)
    assert report.notes == []


def test_recorded_calls_are_the_index_operators_of_a_step(small_runner: ModelRunner) -> None:
    engine = decoding_engine(small_runner, 40, steps=3)
    before = small_runner.backbone.operators
    calls = index_calls(engine)
    # `SMALL` selects in 4 layers, one of which chooses candidate blocks
    assert [call.operator for call in calls] == [
        *("index_scores", "top") * 2,
        *("index_scores", "top", "best_blocks"),
        *("index_scores", "top"),
    ]
    assert small_runner.backbone.operators is before
    assert call_seconds(small_runner, calls) > 0
    (sequence,) = engine.scheduler.running
    assert sequence.cache is not None
    assert sequence.cache.length == 41
    assert step_seconds(engine) > 0
    assert step_seconds(engine) > 0
    assert not engine.has_work
    assert nothing_is_held(small_runner)


def test_default_lengths_end_where_the_model_does(small_directory: Path) -> None:
    assert Context(str(small_directory))._lengths() == (1024, 4089)


def test_too_long_a_context_is_refused(small_directory: Path) -> None:
    context = Context(str(small_directory), (32, 4096))
    with pytest.raises(UsageError, match=r"4103 positions and .* has 4096"):
        context.run(select_backend(REFERENCE))


def test_one_length_has_no_growth() -> None:
    with pytest.raises(UsageError, match="at least two lengths"):
        Context(None, (32,))


def test_backend_that_computes_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="computes nothing"):
        Context().run(select_backend("null"))
