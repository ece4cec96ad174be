"""SIGINT and SIGTERM: the first one stops the command in order, within its grace period.

While the command loads, it raises `Interrupted` in the main thread. From `Interruption.defer` on it
calls the command instead, which aborts what runs, writes what there is and ends: nothing that is
being written is torn. A second signal, or the end of the grace period, ends the process at once: a
step that hangs in an operator does not outlive it.
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
    """A signal asked the command to end. `status` is what it ends with, 128 + the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Interruption:
    """The signals of one command. grace: seconds from the first one to the end of the process."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._timer: threading.Timer | None = None
        self._deferred: Callable[[Interrupted], object] | None = None

    def defer(self, call: Callable[[Interrupted], object]) -> None:
        """Have the first signal call this instead of raising.

        It is called between two instructions of the main thread, whatever that does: it may put
        something into a `queue.SimpleQueue`, and must not take a lock.
        """
        self._deferred = call

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal raises or calls, a second one ends the process."""
        if self._timer is not None:
            _end(128 + number)
        self._timer = threading.Timer(self._grace, _end, (128 + number,))
        self._timer.daemon = True
        self._timer.start()
        if self._deferred is None:
            raise Interrupted(number)
        self._deferred(Interrupted(number))

    def cancel(self) -> None:
        """The command has ended in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


@contextmanager
def interruptible(grace: float) -> Iterator[Interruption]:
    """Handle both signals while the block runs; UsageError for a negative grace period (seconds).

    Outside of the main thread, where Python allows no handlers, nothing is handled.
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
    """End the process without waiting for any thread, nor long for a reader that reads nothing."""
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
