"""Isolation: cases run in processes of their own, with a time limit each.

A crash, a hang or running out of memory is the outcome of the case that did it; the worker is
replaced and the run goes on.
"""

from __future__ import annotations

import json
import os
import queue
import select as io_select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from deepinfer.conformance.case import Outcome, Verdict
from deepinfer.conformance.document import verdict_from_dict
from deepinfer.conformance.registry import Check
from deepinfer.errors import BackendError

TIME_LIMIT = 120.0
START_LIMIT = 300.0


@dataclass(frozen=True)
class Target:
    """Which backend the workers load. environment: variables of its mode. perf: time cases."""

    accelerator: str
    mode: str
    environment: Mapping[str, str]
    perf: bool = False


class _Worker:
    def __init__(self, target: Target) -> None:
        self._target = target
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
        )
        os.close(request_read)
        os.close(reply_write)
        self._errors: list[bytes] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        """Keep the last lines of what the worker says on stderr."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line]

    def wait_ready(self) -> None:
        """Until the backend is loaded; BackendError where that fails."""
        if self._line(START_LIMIT) != b"ready":
            self.stop()
            raise BackendError(f"a worker could not load the backend:\n{self.said()}")

    def run(self, check: Check, limit: float) -> Verdict | None:
        """The verdict; None when the worker is of no use any more: see `ended`."""
        perf = self._target.perf
        asked = json.dumps({"id": check.id, "thorough": check.thorough, "perf": perf})
        try:
            os.write(self._requests, asked.encode() + b"\n")
        except BrokenPipeError:
            return None
        line = self._line(limit)
        return verdict_from_dict(json.loads(line)) if line is not None else None

    def ended(self, check: Check, limit: float, seconds: float) -> Verdict:
        """What became of a case whose worker gave no verdict."""
        if self._process.poll() is None and seconds >= limit:
            self.stop()
            message = f"no verdict after {limit:g} s"
            return Verdict(check.case, Outcome.TIMEOUT, message=message, seconds=seconds)
        status = self._process.wait()
        how = f"status {status}"
        if status < 0:
            how = f"signal {signal.Signals(-status).name}"
            if -status == signal.SIGKILL:
                how += " (out of memory?)"
        self.stop()
        message = f"the worker ended with {how}: {self.said()}"
        return Verdict(check.case, Outcome.ERROR, message=message, seconds=seconds)

    def said(self) -> str:
        """The last line that the worker printed on stderr."""
        self._reader.join(1.0)
        lines = [line.decode(errors="replace").strip() for line in self._errors]
        return next((line for line in reversed(lines) if line), "it said nothing")

    def stop(self) -> None:
        """End the process and close the pipes."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stderr is not None:
            self._process.stderr.close()
        for descriptor in (self._requests, self._replies):
            try:
                os.close(descriptor)
            except OSError:
                continue

    def _line(self, limit: float) -> bytes | None:
        """The next line of replies, or None at the limit or at the worker's end."""
        end = time.monotonic() + limit
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not io_select.select([self._replies], [], [], left)[0]:
                return None
            data = os.read(self._replies, 65536)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class Isolated:
    """One worker at a time, replaced when a case ends it. Close it, or use it in `with`."""

    def __init__(self, target: Target, limit: float = TIME_LIMIT) -> None:
        self._target = target
        self._limit = limit
        self._worker: _Worker | None = None

    def run(self, check: Check) -> Verdict:
        """The verdict of a check; BackendError when the backend cannot be loaded."""
        if self._worker is None:
            worker = _Worker(self._target)
            worker.wait_ready()
            self._worker = worker
        started = time.monotonic()
        verdict = self._worker.run(check, self._limit)
        if verdict is None:
            verdict = self._worker.ended(check, self._limit, time.monotonic() - started)
            self._worker = None
        return verdict

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_isolated(
    checks: Iterable[Check], target: Target, workers: int, limit: float = TIME_LIMIT
) -> Iterator[Verdict]:
    """Verdicts as they come, from `workers` processes; BackendError when none can be loaded."""
    waiting: queue.SimpleQueue[Check | None] = queue.SimpleQueue()
    verdicts: queue.SimpleQueue[Verdict | BaseException] = queue.SimpleQueue()
    chosen = list(checks)
    workers = max(1, min(workers, len(chosen)))
    for check in chosen:
        waiting.put(check)
    for _ in range(workers):
        waiting.put(None)
    stop = threading.Event()
    threads = [
        threading.Thread(target=_serve, args=(waiting, verdicts, target, limit, stop), daemon=True)
        for _ in range(workers)
    ]
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
    target: Target,
    limit: float,
    stop: threading.Event,
) -> None:
    """One thread that feeds one worker."""
    try:
        with Isolated(target, limit) as isolated:
            while not stop.is_set() and (check := waiting.get()) is not None:
                verdicts.put(isolated.run(check))
    except BaseException as error:
        verdicts.put(error)
