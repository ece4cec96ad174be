"""SIGINT and SIGTERM: the first one ends a command in an orderly way, within a grace period.

While the command loads, the signal raises `Interrupted` in the main thread. After
`Interruption.defer` it calls a function of the command instead, which aborts the running requests,
so that the command writes partial results and ends. A second signal, or the end of the grace
period, ends the process at once, even if a step hangs in an operator.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from deepinfer.errors import UsageError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEFAULT_GRACE = 10.0
FLUSH_SECONDS = 0.5


class Interrupted(BaseException):
    """A signal asked the command to end. status: its exit status, 128 + the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Interruption:
    """Handles the signals of one command.

    grace: seconds between the first signal and the end of the process.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._timer: threading.Timer | None = None
        self._deferred: Callable[[Interrupted], object] | None = None

    def defer(self, call: Callable[[Interrupted], object]) -> None:
        """From now on the first signal calls `call` instead of raising.

        It is called in the main thread between any two instructions, so it must not take a lock. It
        may put something into a `queue.SimpleQueue`.
        """
        self._deferred = call

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one raises or calls, a second one ends the process."""
        if self._timer is not None:
            _end(128 + number)
        self._timer = threading.Timer(self._grace, _end, (128 + number,))
        self._timer.daemon = True
        self._timer.start()
        if self._deferred is None:
            raise Interrupted(number)
        self._deferred(Interrupted(number))

    def cancel(self) -> None:
        """Call when the command has ended: stops the grace period."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


@contextmanager
def interruptible(grace: float) -> Iterator[Interruption]:
    """Handle both signals while the block runs.

    grace: seconds; UsageError for a negative number. Python allows signal handlers in the main
    thread only; in any other thread nothing is handled.
    """
    if not 0 <= grace < 1e6:
        raise UsageError(f"grace is {grace:g}; allowed: seconds from 0 up")
    interruption = Interruption(grace)
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.handle) for number in SIGNALS}
    try:
        yield interruption
    finally:
        interruption.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(status: int) -> None:
    """End the process without waiting for other threads, or long for readers of its output."""
    flush = threading.Thread(target=_flush, daemon=True)
    flush.start()
    flush.join(FLUSH_SECONDS)
    os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError):
            continue
