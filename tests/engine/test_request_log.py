"""Records of requests: each with its id, failures above DEBUG."""

from __future__ import annotations

import logging

import pytest

from tests.engine.shadow import add, drain, shadow_engine

LOGGER = "deepinfer.engine.observe.request_log"


def records(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """(level, request id, first word) of every record."""
    return [
        (r.levelname, r.__dict__["request_id"], r.getMessage().split()[0].strip(":"))
        for r in caplog.records
        if r.name == LOGGER
    ]


def test_the_life_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    engine, _ = shadow_engine()
    add(engine, 5)
    drain(engine)
    assert records(caplog) == [
        ("DEBUG", "request-0", word) for word in ("arrived", "first", "finished")
    ]
    assert "5 prompt tokens, n 1, max_tokens 4" in caplog.text
    assert "sample 0, length, 4 tokens in" in caplog.text


def test_preemption(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    engine, _ = shadow_engine(blocks=4)
    add(engine, 25, 25, max_tokens=14)
    drain(engine)
    preempted = [record for record in records(caplog) if record[2] == "preempted"]
    assert preempted == [("DEBUG", "request-1", "preempted")] * engine.scheduler.num_preempted
    assert preempted


def test_life_is_not_shown_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    engine, _ = shadow_engine(blocks=4)
    add(engine, 25, 25, max_tokens=14)
    engine.abort("request-0")
    drain(engine)
    assert records(caplog) == []


def test_what_a_step_raises_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    engine, runner = shadow_engine()
    add(engine, 5)
    runner.raises = ValueError("broken")
    drain(engine)
    assert records(caplog) == [("ERROR", "request-0", "failed")]
    assert "sample 0, error: ValueError: broken" in caplog.text


def test_a_request_without_memory_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    engine, _ = shadow_engine(blocks=2)
    add(engine, 25, max_tokens=14)
    drain(engine)
    assert records(caplog) == [("WARNING", "request-0", "failed")]
    assert "insufficient_system_resource: no memory for 33 tokens" in caplog.text
