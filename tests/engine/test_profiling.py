"""The profiler's states: who is refused, who waits, and that the engine goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.engine.observe.profiling import ProfileError, Profiler
from deepinfer.engine.observe.timers import Timers


class Recorder:
    """In place of `torch.profiler.profile`: notes what is done to it and in which thread."""

    made: list[Recorder]
    fails = ""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[int] = set()
        Recorder.made.append(self)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == Recorder.fails:
            raise RuntimeError(f"{name} failed")

    def start(self) -> None:
        self.threads.add(threading.get_ident())
        self._call("start")

    def stop(self) -> None:
        self.threads.add(threading.get_ident())
        self._call("stop")

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}", encoding="utf-8")
        self._call("export")


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setattr(torch.profiler, "profile", Recorder)
    Recorder.made, Recorder.fails = [], ""
    return Recorder


Take = Callable[..., Future[Path]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def queued(pool: ThreadPoolExecutor, profiler: Profiler, directory: Path, steps: int) -> Any:
    """Ask in another thread; returns once the profiler knows."""
    future = pool.submit(profiler.take, directory, steps)
    while profiler._recording is None and not future.done():
        pass
    return future


def step(profiler: Profiler, count: int = 1) -> None:
    for _ in range(count):
        profiler.step_begins()
        profiler.step_ends()


def status(call: Callable[[], Any]) -> int:
    with pytest.raises(ProfileError) as caught:
        call()
    return caught.value.status


def test_records_just_the_steps(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    timers = Timers()
    profiler = Profiler(timers, rank=3)
    future = queued(pool, profiler, tmp_path, 2)
    assert not Recorder.made
    profiler.step_begins()
    assert Recorder.made[0].calls == ["start"]
    assert timers.profiling
    profiler.step_ends()
    profiler.step_begins()
    assert Recorder.made[0].calls == ["start"]
    profiler.step_ends()
    assert not timers.profiling
    path = future.result()
    assert Recorder.made[0].calls == ["start", "stop", "export"]
    assert path.name.startswith("deepinfer-rank3-")
    assert os.listdir(tmp_path) == [path.name]
    step(profiler, 3)
    assert len(Recorder.made) == 1


def test_one_after_another(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    profiler = Profiler(Timers())
    paths = set()
    for _ in range(2):
        future = queued(pool, profiler, tmp_path, 1)
        step(profiler)
        paths.add(future.result())
    assert len(paths) == 2


def test_one_at_a_time(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    profiler = Profiler(Timers())
    future = queued(pool, profiler, tmp_path, 2)
    assert status(lambda: profiler.take(tmp_path, 1)) == 409
    step(profiler)
    assert status(lambda: profiler.take(tmp_path, 1)) == 409
    step(profiler)
    assert future.result().exists()


def test_one_engine_at_a_time(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    first, second = Profiler(Timers()), Profiler(Timers())
    running = queued(pool, first, tmp_path, 1)
    first.step_begins()
    other = queued(pool, second, tmp_path, 1)
    step(second)
    assert status(other.result) == 409
    first.step_ends()
    running.result()
    again = queued(pool, second, tmp_path, 1)
    step(second)
    assert again.result().exists()


def test_an_unusable_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = Profiler(Timers())
    assert status(lambda: profiler.take(tmp_path / "none", 1)) == 400
    (tmp_path / "file").touch()
    assert status(lambda: profiler.take(tmp_path / "file", 1)) == 400
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert status(lambda: profiler.take(tmp_path, 1)) == 400
    assert profiler._recording is None


def test_no_step_begins(tmp_path: Path) -> None:
    profiler = Profiler(Timers(), start_seconds=0.01)
    assert status(lambda: profiler.take(tmp_path, 1)) == 503
    step(profiler)
    assert not Recorder.made, "it was cancelled"


def test_too_few_steps_come(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    timers = Timers()
    profiler = Profiler(timers, finish_seconds=0.01)
    future = queued(pool, profiler, tmp_path, 5)
    step(profiler)
    assert status(future.result) == 503
    assert status(lambda: profiler.take(tmp_path, 1)) == 409, "the recorder still runs"
    profiler.step_begins()
    assert Recorder.made[0].calls == ["start", "stop"]
    assert not timers.profiling
    profiler._finish_seconds = 20
    again = queued(pool, profiler, tmp_path, 1)
    step(profiler)
    assert again.result().exists()


@pytest.mark.parametrize("fails", ["start", "stop", "export"])
def test_a_recorder_that_fails(fails: str, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    timers = Timers()
    profiler = Profiler(timers)
    Recorder.fails = fails
    future = queued(pool, profiler, tmp_path, 1)
    step(profiler)
    assert status(future.result) == 500
    assert not timers.profiling
    assert not os.listdir(tmp_path)
    Recorder.fails = ""
    again = queued(pool, profiler, tmp_path, 1)
    step(profiler)
    assert again.result().exists()


@pytest.mark.parametrize("steps", [0, 1])
def test_close_ends_what_is_there(steps: int, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    profiler = Profiler(Timers())
    future = queued(pool, profiler, tmp_path, 3)
    step(profiler, steps)
    profiler.close()
    profiler.close()
    assert status(future.result) == 503
    assert [made.calls for made in Recorder.made] == [["start", "stop"]] * steps
    assert status(lambda: profiler.take(tmp_path, 1)) == 503
    step(profiler, 4)
    assert len(Recorder.made) == steps


def test_a_recorder_is_stopped_in_its_own_thread_or_not_at_all(
    pool: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To stop torch's in another thread crashes the process."""
    monkeypatch.setattr("deepinfer.engine.observe.profiling._recorder", threading.Lock())
    profiler = Profiler(Timers())
    future = queued(pool, profiler, tmp_path, 1)
    profiler.step_begins()
    other = threading.Thread(target=profiler.step_ends)
    other.start()
    other.join()
    assert status(future.result) == 500
    assert Recorder.made[0].calls == ["start"]


def test_ranges_are_opened_only_while_profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class Range:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            opened.append(self.name)

        def __exit__(self, *error: object) -> None:
            opened.append("end")

    monkeypatch.setattr(torch.profiler, "record_function", Range)
    timers = Timers()
    for profiling in (False, True, False):
        timers.profiling = profiling
        with timers.timed("forward"):
            pass
    assert opened == ["deepinfer:forward", "end"]
    assert timers.stats()["forward"].count == 3


def test_a_part_that_raises_is_measured_and_closed() -> None:
    timers = Timers()
    with pytest.raises(ValueError, match="broken"), timers.timed("sample"):
        raise ValueError("broken")
    assert timers.stats()["sample"].count == 1
