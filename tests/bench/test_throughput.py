"""`throughput`: tokens that are counted, by checkpoint and batch size."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.bench.throughput import Pass, Throughput
from deepinfer.engine import open_engine
from deepinfer.errors import UsageError


def test_rates_are_tokens_over_seconds(
    small_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Throughput, "measure", lambda self, runner, batch: Pass(2, 4))
    report = Throughput((str(small_directory),), 12, 9, (1, 3)).run(select_backend("null"))
    for batch in (1, 3):
        where = {"model": "checkpoint", "batch": batch}
        assert report.find("prefill", **where).samples == [batch * 12 / 2] * 4
        assert report.find("decode", **where).samples == [batch * 8 / 4] * 4


@pytest.mark.slow
def test_one_pass_computes_all_prompts_and_answers(small_directory: Path) -> None:
    options = Throughput((str(small_directory),), 6, 3, (2,))
    with open_engine(small_directory, select_backend(REFERENCE), options._options()) as opened:
        seconds = options.measure(opened, 2)
        snapshot = opened.stats()
    assert seconds.prefill > 0
    assert seconds.decode > 0
    assert (snapshot.prompt_tokens, snapshot.generation_tokens) == (2 * 6, 2 * 3)


def test_checkpoints_of_one_name_are_told_apart(small_directory: Path) -> None:
    model = str(small_directory)
    report = Throughput((model, model), 3, 2, (1,)).run(select_backend("null"))
    models = [series.conditions["model"] for series in report.series]
    assert models == ["checkpoint"] * 2 + ["checkpoint (1)"] * 2
    assert [facts["hidden_size"] for facts in report.environment["checkpoints"]] == [64, 64]


def test_backend_that_computes_nothing_is_labelled(small_directory: Path) -> None:
    report = Throughput((str(small_directory),), 3, 2, (1,)).run(select_backend("null"))
    assert "null computes nothing" in report.notes[0]


def test_numerics_and_compute_reach_the_engine(small_directory: Path) -> None:
    report = Throughput((str(small_directory),), 3, 2, (1,), 4, "ref", "fp32").run(
        select_backend("null")
    )
    facts = report.environment["checkpoints"][0]
    assert (facts["numerics"], facts["compute"]) == ("ref", "fp32")


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(UsageError, match="need 8193 positions and the random checkpoint has 8192"):
        Throughput(prompt_tokens=8190, output_tokens=3).run(select_backend(REFERENCE))


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"prompt_tokens": 0}, "--prompt-tokens"),
        ({"output_tokens": 1}, "--output-tokens"),
        ({"batches": (0,)}, "--batch"),
        ({"rounds": 1}, "--rounds"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is"):
        Throughput(**wrong)  # type: ignore[arg-type]
