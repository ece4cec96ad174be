"""SIGINT and SIGTERM: the first one stops the command in order, within its grace period.

The signal raises `Interrupted` in the main thread, which aborts what runs, writes what there is and
ends. A second signal, or the end of the grace period, ends the process at once: a step that hangs
in an operator does not outlive it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from deepinfer.errors import UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEFAULT_GRACE = 10.0


class Interrupted(BaseException):
    """A signal asked the command to end. `status` is what it ends with, 128 + the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextmanager
def interruptible(grace: float) -> Iterator[None]:
    """Handle both signals while the block runs; UsageError for a negative grace period (seconds).

    Outside of the main thread, where Python allows no handlers, it does nothing.
    """
    if not 0 <= grace < 1e6:
        raise UsageError(f"grace is {grace:g}; allowed: seconds from 0 up")
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watchdog = _Watchdog(grace)
    before = {number: signal.signal(number, watchdog.handle) for number in SIGNALS}
    try:
        yield
    finally:
        watchdog.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watchdog:
    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._timer: threading.Timer | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal raises, a second one ends the process."""
        if self._timer is not None:
            _end(128 + number)
        self._timer = threading.Timer(self._grace, _end, (128 + number,))
        self._timer.daemon = True
        self._timer.start()
        raise Interrupted(number)

    def cancel(self) -> None:
        """The command has ended in time."""
        if self._timer is not None:
            self._timer.cancel()


def _end(status: int) -> None:
    """End the process without waiting for any thread; what was printed is not lost."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError):
            continue
    os._exit(status)
