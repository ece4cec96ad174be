"""`EngineLoop`: the thread that steps an `Engine` while there is work.

Only this thread touches the engine. All others put commands into a queue, so any number of threads
and event loops may use one engine. The thread starts with the first command and ends with `close`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from deepinfer.engine.engine import Engine
from deepinfer.engine.job import Job
from deepinfer.engine.request import FinishReason
from deepinfer.errors import DeepInferError, PromptTooLongError, UsageError

Command = Callable[[], None]
_log = logging.getLogger(__name__)


class EngineLoop:
    """Runs jobs on an engine. If the thread dies of an error, all its jobs fail with that error."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = False
        self._error: BaseException | None = None

    def refuse_wait(self) -> None:
        """UsageError in the engine's thread, where waiting for a request would never end."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a callback cannot wait for a request: it holds the engine's thread; use submit "
                "with on_done there, or wait in another thread"
            )

    def submit(self, job: Job) -> None:
        """Queue a job; it gets a result in every case. UsageError after `close`."""
        self._send(lambda: self._add(job))

    def abort(self, request_id: str) -> None:
        """End a request; it keeps its tokens so far. An unknown id is ignored."""
        self._send_abort(lambda: self._abort(request_id))

    def abort_job(self, job: Job) -> None:
        """End this job, and no other job that was submitted with the same id."""

        def command() -> None:
            if self._jobs.get(job.request_id) is job:
                self._abort(job.request_id)

        if not job.done():
            self._send_abort(command)

    def _send_abort(self, command: Command) -> None:
        try:
            self._send(command)
        except DeepInferError:
            return  # the thread has ended, and every request has its result

    def close(self) -> None:
        """Abort all requests and end the thread; may be called again."""
        with self._lock:
            self._closing = True
            thread = self._thread
        if thread is None:
            self.engine.close()
            return
        self._commands.put(lambda: None)
        if thread is not threading.current_thread():
            thread.join()

    def _send(self, command: Command) -> None:
        with self._lock:
            if self._error is not None:
                raise DeepInferError(
                    f"the engine has stopped: {type(self._error).__name__}: {self._error}; make a "
                    "new one"
                )
            if self._closing:
                raise UsageError("this LLM is closed; make a new one")
            self._commands.put(command)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="deepinfer-engine", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._obey()
                if self.engine.has_work and not self._closing:
                    for request in self.engine.step():
                        self._jobs.pop(request.request_id).finish(request)
            for request_id in list(self._jobs):
                self._abort(request_id)
        except BaseException as error:
            _log.critical("the engine has stopped", exc_info=error)
            self._fail_all(error)
        finally:
            self._refuse_rest()
            self.engine.close()

    def _obey(self) -> None:
        """Carry out all queued commands; without other work, wait for the next command."""
        while not self._closing:
            try:
                command = self._commands.get(block=not self.engine.has_work)
            except queue.Empty:
                return
            command()

    def _add(self, job: Job) -> None:
        try:
            self.engine.add(job.ids, job.params, job.request_id, job.on_token)
        except PromptTooLongError as error:
            job.fail(error, FinishReason.TOO_LONG)
        except Exception as error:  # it concerns this request alone
            job.fail(error)
        else:
            self._jobs[job.request_id] = job

    def _abort(self, request_id: str) -> None:
        job = self._jobs.get(request_id)
        request = self.engine.request(request_id)
        if job is not None and request is not None:
            self.engine.abort(request_id)
            self._jobs.pop(request_id)
            job.finish(request)

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            self._error = error
        shown = error if isinstance(error, Exception) else RuntimeError(repr(error))
        for job in self._jobs.values():
            job.fail(shown)
        self._jobs.clear()

    def _refuse_rest(self) -> None:
        """Fail the jobs that were still in the queue when the thread ended."""
        while True:
            try:
                command = self._commands.get(block=False)
            except queue.Empty:
                return
            command()
            for request_id, job in list(self._jobs.items()):
                self.engine.abort(request_id)
                job.fail(UsageError("the engine was closed before this request could run"))
                del self._jobs[request_id]
