"""The two signals: raised while a command loads, told to it later, and the end of all patience."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from deepinfer.cli import interruption
from deepinfer.cli.interruption import Interrupted, interruptible
from deepinfer.errors import UsageError

BOTH = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses that the process would have ended with."""
    seen: list[int] = []

    def end(status: int) -> None:
        seen.append(status)
        if threading.current_thread() is threading.main_thread():
            raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return seen


@BOTH
def test_a_signal_raises_at_first(number: signal.Signals, status: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=number.name) as raised, interruptible(100):
        signal.raise_signal(number)
    assert raised.value.status == status
    assert signal.getsignal(number) is before
    assert not _timers()


@BOTH
def test_a_signal_calls_where_it_is_deferred(number: signal.Signals, status: int) -> None:
    seen: list[Interrupted] = []
    with interruptible(100) as signals:
        signals.defer(seen.append)
        signal.raise_signal(number)
    assert [one.status for one in seen] == [status]


@BOTH
def test_a_second_signal_ends_the_process(
    number: signal.Signals, status: int, exits: list[int]
) -> None:
    with interruptible(100) as signals:
        signals.defer(lambda interrupted: None)
        signal.raise_signal(signal.SIGINT)
        assert exits == []
        with pytest.raises(Ended):
            signal.raise_signal(number)
    assert exits == [status]


def test_the_end_of_the_grace_period_ends_the_process(exits: list[int]) -> None:
    with interruptible(0) as signals:
        signals.defer(lambda interrupted: None)
        signal.raise_signal(signal.SIGTERM)
        for timer in _timers():
            timer.join()
    assert exits == [143]


def test_a_command_that_ends_in_time_is_left_alone(exits: list[int]) -> None:
    with interruptible(1e5) as signals:
        signals.defer(lambda interrupted: None)
        signal.raise_signal(signal.SIGTERM)
        assert len(_timers()) == 1
    assert exits == []
    assert not _timers()


def test_the_end_does_not_wait_for_a_reader_that_has_stopped(
    monkeypatch: pytest.MonkeyPatch, exits: list[int]
) -> None:
    class Stuck:
        def __init__(self) -> None:
            self.released = threading.Event()

        def flush(self) -> None:
            self.released.wait()

    stuck = Stuck()
    monkeypatch.setattr(interruption, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr("sys.stdout", stuck)
    with pytest.raises(Ended):
        interruption._end(143)
    stuck.released.set()
    assert exits == [143]


@pytest.mark.parametrize("grace", [-1.0, float("nan"), float("inf")])
def test_a_wrong_grace_period(grace: float) -> None:
    with pytest.raises(UsageError, match="allowed: seconds from 0 up"), interruptible(grace):
        pass


def test_other_threads_are_left_alone() -> None:
    seen: list[Callable[..., object] | int | None] = []

    def work() -> None:
        with interruptible(1):
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def _timers() -> list[threading.Timer]:
    return [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
