"""Isolation: cases run in worker processes, each with a time limit.

A crash, a hang or running out of memory is the outcome of the case that caused it; the worker is
replaced and the run goes on. Every worker leads a group of processes that ends as a whole, with the
worker or with the command (`worker.py`), so that nothing that a backend starts outlives the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select as io_select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass

from deepinfer.conformance.case import Outcome, Verdict
from deepinfer.conformance.document import verdict_from_dict
from deepinfer.conformance.registry import Check
from deepinfer.conformance.worker import RAISED, READY
from deepinfer.errors import BackendError, UsageError

TIME_LIMIT = 120.0
START_LIMIT = 300.0
PROCESSES_PER_CORE = 4
LOOK = 0.2
"""Seconds between checks whether a silent worker still lives."""
ENDING = 5.0
"""Seconds within which a process that closed its pipes ends; it may write a core file first."""
LAST_BYTES = 4096
"""How much of the end of a worker's stderr is kept."""


@dataclass(frozen=True)
class Target:
    """Which backend the workers load. environment: variables of its mode. perf: time cases."""

    accelerator: str
    mode: str
    environment: Mapping[str, str]
    perf: bool = False


def check_workers(workers: int) -> None:
    """UsageError for a number of processes that cannot be used."""
    most = max(8, PROCESSES_PER_CORE * (os.cpu_count() or 1))
    if not 0 <= workers <= most:
        raise UsageError(
            f"workers is {workers}; allowed: 0 (this process, without isolation) to {most} on this "
            "machine; each loads the backend for itself"
        )


class Worker:
    """One process that serves cases. stopping: set when the run ends early."""

    def __init__(self, target: Target, stopping: threading.Event | None = None) -> None:
        self._target = target
        self.stopping = stopping or threading.Event()
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        self._buffer = b""
        command = [sys.executable, "-m", "deepinfer.conformance.worker", target.accelerator]
        self._process = subprocess.Popen(
            [*command, target.mode, str(request_read), str(reply_write)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **target.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(request_read, reply_write),
            start_new_session=True,
        )
        os.close(request_read)
        os.close(reply_write)
        self._errors = b""
        self._stopped = False
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        """Keep the end of what the worker says on stderr, however much that is."""
        assert self._process.stderr is not None
        descriptor = self._process.stderr.fileno()
        while data := os.read(descriptor, 65536):
            self._errors = (self._errors + data)[-LAST_BYTES:]

    def wait_ready(self) -> bool:
        """Until the backend is loaded; False where loading raised, as it does in any process.

        BackendError where it ends the process, or takes too long.
        """
        started = time.monotonic()
        line = self._line(START_LIMIT)
        if line == READY:
            return True
        alive = self._lives(time.monotonic() - started >= START_LIMIT)
        self.stop()
        if line == RAISED:
            return False
        if alive and not self.stopping.is_set():
            raise BackendError(
                f"backend {self._target.accelerator!r}, mode {self._target.mode!r}: it was not "
                f"loaded after {START_LIMIT:g} s; its deepinfer_create must return"
            )
        raise BackendError(
            f"backend {self._target.accelerator!r}, mode {self._target.mode!r}: loading it ended "
            f"the worker with {self._how()}: {self.said()}"
        )

    def run(self, check: Check, limit: float) -> Verdict | None:
        """The verdict of a case; None when the worker cannot be used any more: see `ended`."""
        perf = self._target.perf
        asked = json.dumps({"id": check.id, "thorough": check.thorough, "perf": perf})
        try:
            os.write(self._requests, asked.encode() + b"\n")
        except BrokenPipeError:
            return None
        line = self._line(limit)
        return verdict_from_dict(json.loads(line)) if line is not None else None

    def ended(self, check: Check, limit: float, seconds: float) -> Verdict:
        """The verdict of a case whose worker returned none."""
        alive = self._lives(seconds >= limit)
        self.stop()
        if alive and seconds >= limit:
            message = f"no verdict after {limit:g} s"
            return Verdict(check.case, Outcome.TIMEOUT, message=message, seconds=seconds)
        how = "closed its pipes" if alive else f"ended with {self._how()}"
        message = f"the worker {how}: {self.said()}"
        return Verdict(check.case, Outcome.ERROR, message=message, seconds=seconds)

    def said(self) -> str:
        """The last line that the worker printed on stderr."""
        lines = self._errors.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def stop(self) -> None:
        """End the process and all that it started, and close the pipes; once."""
        if self._stopped:
            return
        self._stopped = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(1.0)
        # A process that left the group may hold the pipe; then its reader is left to it.
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()
        os.close(self._requests)
        os.close(self._replies)

    def _lives(self, late: bool) -> bool:
        """Whether the process still runs. One that closed its pipes in time may be about to end."""
        try:
            self._process.wait(0.0 if late or self.stopping.is_set() else ENDING)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _how(self) -> str:
        status = self._process.wait()
        if status >= 0:
            return f"status {status}"
        hint = " (out of memory?)" if -status == signal.SIGKILL else ""
        return f"signal {signal.Signals(-status).name}{hint}"

    def _line(self, limit: float) -> bytes | None:
        """The next line of replies; None at the limit, at the worker's end, and when stopping."""
        end = time.monotonic() + limit
        ready = io_select.poll()
        ready.register(self._replies, io_select.POLLIN)
        while b"\n" not in self._buffer:
            lives = self._process.poll() is None
            left = end - time.monotonic()
            if left <= 0 or self.stopping.is_set():
                return None
            if ready.poll(1000 * min(left, LOOK)):
                data = os.read(self._replies, 65536)
                if not data:
                    return None
                self._buffer += data
            elif not lives:  # a process of its own holds the pipe
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class Isolated:
    """One worker at a time, replaced when a case ends it. Close it, or use it in `with`."""

    def __init__(
        self,
        target: Target,
        limit: float = TIME_LIMIT,
        stopping: threading.Event | None = None,
        worker: Worker | None = None,
    ) -> None:
        self._target = target
        self._limit = limit
        self._stopping = stopping or threading.Event()
        self._worker = worker
        if worker is not None:
            worker.stopping = self._stopping

    def run(self, check: Check) -> Verdict:
        """The verdict of a check; BackendError when the backend cannot be loaded."""
        if self._worker is None:
            worker = Worker(self._target, self._stopping)
            if not worker.wait_ready():
                raise BackendError(f"a worker could not load the backend: {worker.said()}")
            self._worker = worker
        started = time.monotonic()
        verdict = self._worker.run(check, self._limit)
        if verdict is None:
            verdict = self._worker.ended(check, self._limit, time.monotonic() - started)
            self._worker = None
        return verdict

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def loaded(target: Target) -> Worker | None:
    """A worker that has loaded the backend; None where loading raises, as it will anywhere.

    Asked before a process loads the backend that cannot afford to hang or to end there:
    BackendError where the worker did.
    """
    worker = Worker(target)
    try:
        return worker if worker.wait_ready() else None
    except BaseException:
        worker.stop()
        raise


def run_isolated(
    checks: Iterable[Check],
    target: Target,
    workers: int,
    limit: float = TIME_LIMIT,
    first: Worker | None = None,
) -> Generator[Verdict, None, None]:
    """Verdicts as they come, from `workers` processes; BackendError when none can be loaded.

    first: a worker that is there already (`loaded`); it is ended with the others. Closing the
    iterator ends the workers at once.
    """
    waiting: queue.SimpleQueue[Check | None] = queue.SimpleQueue()
    verdicts: queue.SimpleQueue[Verdict | BaseException] = queue.SimpleQueue()
    chosen = list(checks)
    workers = max(1, min(workers, len(chosen)))
    for check in chosen:
        waiting.put(check)
    for _ in range(workers):
        waiting.put(None)
    stop = threading.Event()
    threads = []
    for number in range(workers):
        isolated = Isolated(target, limit, stop, first if number == 0 else None)
        serve = (waiting, verdicts, isolated, stop)
        threads.append(threading.Thread(target=_serve, args=serve, daemon=True))
    for thread in threads:
        thread.start()
    try:
        for _ in chosen:
            verdict = verdicts.get()
            if isinstance(verdict, BaseException):
                raise verdict
            yield verdict
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _serve(
    waiting: queue.SimpleQueue[Check | None],
    verdicts: queue.SimpleQueue[Verdict | BaseException],
    isolated: Isolated,
    stop: threading.Event,
) -> None:
    """One thread that feeds one worker."""
    try:
        with isolated:
            while not stop.is_set() and (check := waiting.get()) is not None:
                verdicts.put(isolated.run(check))
    except BaseException as error:
        verdicts.put(error)
