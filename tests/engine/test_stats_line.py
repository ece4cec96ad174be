"""The statistics line: when it comes, what it says, and what silences it."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer.engine import Engine
from deepinfer.engine.observe.stats_line import StatsLine
from deepinfer.engine.sampler import NO_RULES
from deepinfer.settings.settings import Settings
from tests.engine.shadow import ShadowRunner, add, drain, shadow_engine

LOGGER = "deepinfer.engine.stats"


def engine_with(interval: str | None, **limits: Any) -> tuple[Engine, ShadowRunner]:
    values = {} if interval is None else {"DEEPINFER_LOGGING_INTERVAL_STEP": interval}
    return shadow_engine(settings=Settings.from_environment(values), **limits)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    records = [r for r in caplog.records if r.name == LOGGER and r.levelno == level]
    return [record.getMessage() for record in records]


def fields(line: str) -> dict[str, str]:
    """The fields of a line: text before and after each ": "."""
    return dict(re.findall(r"([\w/ ]+?): (\([^)]*\)|[^,]*)(?:, |$)", line))


@pytest.mark.parametrize(("interval", "count"), [("1", 6), ("2", 3), ("4", 1), ("0", 0), ("-1", 0)])
def test_a_line_every_so_many_steps(
    interval: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    engine, _ = engine_with(interval)
    add(engine, 5, max_tokens=6)
    drain(engine)
    engine.close()
    assert len(lines(caplog)) == count


@pytest.mark.slow
def test_every_hundred_steps_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    engine, _ = engine_with(None, slots=2)
    add(engine, 2, 2, 2, 2, max_tokens=70)  # two by two
    drain(engine)
    engine.close()
    assert engine.stats().steps == 140
    assert len(lines(caplog)) == 1


def test_the_option_silences_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    settings = Settings.from_environment({"DEEPINFER_LOGGING_INTERVAL_STEP": "1"})
    _, runner = shadow_engine()
    runner.options = SimpleNamespace(seed=None, disable_log_stats=True)
    engine = Engine(runner, shadow_engine()[0].limits, NO_RULES, settings)  # type: ignore[arg-type]
    add(engine, 5)
    drain(engine)
    engine.close()
    assert not lines(caplog)
    assert not lines(caplog, logging.DEBUG)


@pytest.mark.slow
def test_an_engine_without_settings_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    engine, _ = shadow_engine()
    add(engine, *[2] * 30, max_tokens=70)
    drain(engine)
    assert engine.stats().steps > 100
    assert not lines(caplog)


def test_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    """Two prompts of 20 and 6 in steps of 16 rows: 16, then 4 + 6, then two rows a step."""
    caplog.set_level(logging.INFO, LOGGER)
    engine, _ = engine_with("1", slots=4, blocks=20, pages=40, max_num_batched_tokens=16)
    add(engine, 20, 6, max_tokens=3)
    drain(engine)
    engine.close()
    first, second, third, fourth = map(fields, lines(caplog))
    assert (first["is_prompt"], first["running"], first["pending"]) == ("True", "1", "1")
    assert (first["chunked"], first["num_batched_tokens"]) == ("1", "16 [100.0%]")
    assert (first["KV_cache_usage"], first["state_cache_usage"]) == ("5.0%", "25.0%")
    assert first["window_usage"] != "0.0%"
    assert first["prefill/decode"] == "100.0%/0.0%"
    assert (first["sum_seqlen_qxk"], first["max_seqlen_k"]) == (str(16 * 16), "16")
    assert float(first["TTFT max"].split()[0]) == 0
    assert (second["chunked"], second["num_batched_tokens"]) == ("0", "10 [62.5%]")
    assert second["sum_seqlen_qxk"] == str(4 * 20 + 6 * 6)
    assert (second["max_seqlen_k"], second["min_seqlen_k"]) == ("20", "6")
    assert float(second["TTFT max"].split()[0]) >= float(second["mean"].split()[0]) > 0
    assert (third["is_prompt"], third["prefill/decode"]) == ("False", "0.0%/100.0%")
    assert (third["finished"], third["avg_length"]) == ("0", "(0.0, 0.0)")
    assert (fourth["finished"], fourth["avg_length"]) == ("2", "(13.0, 3.0)")
    assert float(fourth["completion_TPS"]) > 0 == float(fourth["prompt_TPS"])
    assert {"cur_SPS", "avg_SPS", "cur_TPS", "preempted", "aborted"} <= set(first)
    missing = {"moe_lb", "MFU", "attn_TFLOPs", "avg_nextn_accept_rate", "verified_tokens"}
    assert not missing & set(first)


def test_aborted_and_preempted_are_those_of_the_window(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    engine, _ = engine_with("1", blocks=5, max_num_batched_tokens=80)
    add(engine, 25, 25, 25, max_tokens=14)
    engine.step()
    engine.abort("request-0")
    engine.step()
    assert [fields(line)["aborted"] for line in lines(caplog)] == ["0", "1"]
    drain(engine)
    engine.close()
    counted = [int(fields(line)["preempted"]) for line in lines(caplog)]
    assert sum(counted) == engine.scheduler.num_preempted > 0


def test_timers_are_shown_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    engine, _ = engine_with("2")
    add(engine, 5, max_tokens=2)
    drain(engine)
    engine.close()
    (line,) = lines(caplog, logging.DEBUG)
    assert re.match(r"timers in ms: schedule cur [\d.]+ mean [\d.]+ max [\d.]+, prepare_inp", line)


def test_a_silent_line_keeps_nothing() -> None:
    engine, _ = shadow_engine()
    line = engine.observer._line
    assert isinstance(line, StatsLine)
    add(engine, 5)
    drain(engine)
    assert line._window.steps == line._window.finished == 0
