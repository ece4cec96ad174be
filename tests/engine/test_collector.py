"""Garbage collection by steps: off while engines run steps, and given back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from deepinfer.engine import Engine
from deepinfer.engine.observe.collector import Collector
from deepinfer.settings.settings import Settings
from tests.engine.shadow import add, drain, shadow_engine


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    assert gc.isenabled()
    yield
    assert gc.isenabled()


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every collection that is asked for."""
    calls: list[int] = []

    def collect() -> int:
        calls.append(1)
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    return calls


def engine_with(interval: str) -> Engine:
    settings = Settings.from_environment({"DEEPINFER_GC_INTERVAL_STEP": interval})
    return shadow_engine(settings=settings)[0]


@pytest.mark.parametrize(("interval", "count"), [("1", 8), ("3", 2), ("100", 0), ("0", 0)])
def test_a_collection_every_so_many_steps(interval: str, count: int, collected: list[int]) -> None:
    engine = engine_with(interval)
    add(engine, 5, max_tokens=8)
    while engine.has_work:
        engine.step()
        if engine.has_work:
            assert gc.isenabled() == (interval == "0")
    assert len(collected) == count
    engine.close()


def test_an_idle_engine_gives_it_back_and_steps_take_it_again() -> None:
    engine = engine_with("5")
    assert gc.isenabled(), "an engine that has run no step leaves it alone"
    for _ in range(2):
        add(engine, 5)
        engine.step()
        assert not gc.isenabled()
        drain(engine)
        assert gc.isenabled()
    engine.close()


def test_close_gives_it_back_and_steps_after_it_leave_it_alone() -> None:
    engine = engine_with("5")
    add(engine, 5)
    engine.step()
    engine.close()
    assert gc.isenabled()
    engine.step()
    assert gc.isenabled()
    drain(engine)
    engine.close()


def test_the_last_of_several_engines_gives_it_back() -> None:
    first, second = engine_with("5"), engine_with("7")
    for engine in (first, second):
        add(engine, 5)
        engine.step()
    first.close()
    first.close()
    assert not gc.isenabled()
    second.close()
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    try:
        collector = Collector(5)
        collector.step()
        collector.release()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_engine_without_settings_leaves_it_alone() -> None:
    engine, _ = shadow_engine()
    add(engine, 5)
    engine.step()
    assert gc.isenabled()
    drain(engine)
