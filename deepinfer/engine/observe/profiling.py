"""`Profiler`: records a trace of the next steps of an engine.

Any other thread asks for a trace, waits for it and writes the file. The engine's thread only starts
and stops the recording, between two steps. Source: engine specification, section 14.3.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import torch

from deepinfer.engine.observe.timers import Timers
from deepinfer.errors import DeepInferError

MAX_STEPS = 50
DEFAULT_STEPS = 20

_log = logging.getLogger(__name__)
_recorder = threading.Lock()
"""Held while an engine records, because PyTorch has one recorder for the whole process."""


class ProfileError(DeepInferError):
    """No trace was taken. status: the HTTP status of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Recording:
    """A trace that was asked for, and how far it is."""

    def __init__(self, num_steps: int) -> None:
        self.steps_left = num_steps
        self.started = threading.Event()
        self.stopped = threading.Event()
        self.error: ProfileError | None = None
        self.abandoned = False
        self.recorder: torch.profiler.profile | None = None
        self.thread = 0


class Profiler:
    """Takes one trace at a time. `step_begins` and `step_ends` are called by the stepping thread.

    rank: the number of the device, for file names. start_seconds: how long to wait for a step to
    begin. finish_seconds: how long the recorded steps may take.
    """

    def __init__(
        self,
        timers: Timers,
        rank: int = 0,
        start_seconds: float = 30.0,
        finish_seconds: float = 600.0,
    ) -> None:
        self._timers, self._rank = timers, rank
        self._start_seconds, self._finish_seconds = start_seconds, finish_seconds
        self._lock = threading.Lock()
        self._recording: _Recording | None = None
        self._closed = False

    def take(self, directory: Path, num_steps: int) -> Path:
        """Record the next `num_steps` steps; returns the file with the trace (Chrome JSON).

        Blocks until then, so the stepping thread must not call it. ProfileError with status 400 for
        a directory that cannot be written, 409 while another trace is taken, 500 when the recorder
        fails, and 503 when no step begins, the steps take too long or the engine is closed.
        """
        check_directory(directory)
        recording = self._queue(num_steps)
        try:
            if not recording.started.wait(self._start_seconds):
                self._withdraw(recording)
            if not recording.stopped.wait(self._finish_seconds):
                self._abandon(recording)
            if recording.error is not None:
                raise recording.error
            assert recording.recorder is not None
            return self._write(recording.recorder, directory)
        finally:
            self._forget(recording)

    def _queue(self, num_steps: int) -> _Recording:
        with self._lock:
            if self._closed:
                raise ProfileError(503, "the engine is closed")
            if self._recording is not None:
                raise ProfileError(409, "a profile is queued or running already; wait for it")
            self._recording = _Recording(num_steps)
            return self._recording

    def _withdraw(self, recording: _Recording) -> None:
        """Take back a recording that no step has started; ProfileError unless one just has."""
        with self._lock:
            if recording.started.is_set():
                return
            self._recording = None
        raise ProfileError(
            503,
            f"no step began within {self._start_seconds:g} s, so the profile was cancelled; ask "
            "again while requests run",
        )

    def _abandon(self, recording: _Recording) -> None:
        """Give up a recording, which the next step stops; ProfileError unless it is complete."""
        with self._lock:
            if recording.stopped.is_set():
                return
            recording.abandoned = True
        raise ProfileError(
            503,
            f"{recording.steps_left} steps were still to come after {self._finish_seconds:g} s, so "
            "the profile was cancelled; ask for fewer steps, or while requests run",
        )

    def _forget(self, recording: _Recording) -> None:
        with self._lock:
            if self._recording is recording and (
                recording.stopped.is_set() or not recording.started.is_set()
            ):
                self._recording = None

    def _write(self, recorder: torch.profiler.profile, directory: Path) -> Path:
        name = f"deepinfer-rank{self._rank}-{os.getpid()}-{time.time_ns()}.json"
        part, path = directory / f".{name}.part", directory / name
        try:
            recorder.export_chrome_trace(str(part))
            part.replace(path)
        except Exception as error:
            part.unlink(missing_ok=True)
            raise ProfileError(500, f"the trace could not be written: {_shown(error)}") from error
        return path

    def step_begins(self) -> None:
        """Start a recording that waits for a step, or stop one that was given up."""
        recording = self._recording
        if recording is None:
            return
        with self._lock:
            if recording is not self._recording:
                return
            if recording.abandoned:
                self._stop(recording)
            elif not recording.started.is_set():
                self._start(recording)

    def step_ends(self) -> None:
        """Count a recorded step; stop the recording after the last one."""
        recording = self._recording
        if recording is None or recording.recorder is None or recording.stopped.is_set():
            return
        with self._lock:
            recording.steps_left -= 1
            if recording.steps_left < 1 or recording.abandoned:
                self._stop(recording)

    def _start(self, recording: _Recording) -> None:
        if not _recorder.acquire(blocking=False):
            recording.error = ProfileError(
                409, "another engine of this process is being profiled; wait for it"
            )
        else:
            try:
                recorder = torch.profiler.profile()
                recorder.start()
            except Exception as error:
                _recorder.release()
                recording.error = ProfileError(500, f"the profiler did not start: {_shown(error)}")
            else:
                recording.recorder, recording.thread = recorder, threading.get_ident()
                self._timers.profiling = True
                _log.info("profiling the next %d steps", recording.steps_left)
        if recording.error is not None:
            recording.stopped.set()
        recording.started.set()

    def _stop(self, recording: _Recording) -> None:
        """Stop recording, in the thread that started it: in any other the recorder crashes."""
        assert recording.recorder is not None
        self._timers.profiling = False
        try:
            if recording.thread == threading.get_ident():
                recording.recorder.stop()
                _recorder.release()
            else:
                recording.error = ProfileError(500, "the thread that steps the engine has changed")
        except Exception as error:
            _recorder.release()
            recording.error = ProfileError(500, f"the profiler did not stop: {_shown(error)}")
        recording.stopped.set()
        if recording.abandoned:
            self._recording = None

    def close(self) -> None:
        """End a recording that is asked for with status 503. Call it in the thread that stepped."""
        with self._lock:
            self._closed = True
            recording = self._recording
            if recording is None or recording.stopped.is_set():
                return
            recording.error = ProfileError(
                503, "the engine was closed before the profile was complete"
            )
            if recording.recorder is not None:
                self._stop(recording)
            recording.stopped.set()
            recording.started.set()


def check_directory(directory: Path) -> None:
    """ProfileError with status 400 for a directory that traces cannot be written to."""
    if not directory.is_dir():
        raise ProfileError(400, f"output_dir is {str(directory)!r}, which is no directory; make it")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ProfileError(400, f"output_dir is {str(directory)!r}, which cannot be written to")


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
