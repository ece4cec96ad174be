"""`Collector`: Python's garbage collection at steps of the engine's choice.

An automatic collection stops every thread at a moment nobody chose, in the middle of a step too.
While an engine runs steps it is off, and every `interval` steps one collection is made.
"""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_running = 0
_was_enabled = True


class Collector:
    """One engine's claim that automatic collection stays off; claims of a process are counted.

    The last claim that goes restores what was so before the first one. interval: steps from one
    collection to the next; 0 leaves everything to Python.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._steps = 0
        self._claims = False

    def step(self) -> None:
        """A step begins: claim, and collect when it is time."""
        if not self._interval:
            return
        self._claim()
        self._steps += 1
        if self._steps >= self._interval:
            self._steps = 0
            gc.collect()

    def _claim(self) -> None:
        global _running, _was_enabled
        if self._claims:
            return
        with _lock:
            if not _running:
                _was_enabled = gc.isenabled()
                gc.disable()
            _running += 1
        self._claims = True

    def release(self) -> None:
        """No step follows soon: give the claim up. May be called again, and steps may follow."""
        global _running
        if not self._claims:
            return
        self._claims = False
        with _lock:
            _running -= 1
            if not _running and _was_enabled:
                gc.enable()
