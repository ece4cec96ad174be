"""`Collector`: runs Python's garbage collection between steps instead of at any moment.

An automatic collection stops every thread, often in the middle of a step. While an engine runs
steps, automatic collection is off, and one collection is made every `interval` steps.
"""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_running = 0
_was_enabled = True


class Collector:
    """Keeps automatic collection off while one engine has work.

    Collection is a setting of the process, so the collectors that keep it off are counted: the last
    one to release it restores the state from before the first. interval: steps between two
    collections; 0 changes nothing about Python's own collection.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._steps = 0
        self._claims = False

    def step(self) -> None:
        """Call before each step: turns automatic collection off, and collects when it is due."""
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
        """Let automatic collection run again. May be called repeatedly; steps may follow."""
        global _running
        if not self._claims:
            return
        self._claims = False
        with _lock:
            _running -= 1
            if not _running and _was_enabled:
                gc.enable()
