"""One worker process: reads ids of cases, writes verdicts, one JSON line each.

    python -m deepinfer.conformance.worker ACCELERATOR MODE IN OUT

IN and OUT are file descriptors. What a backend prints goes to the usual streams.
"""

from __future__ import annotations

import json
import os
import select as io_select
import signal
import sys

READY, RAISED = b"ready", b"raised"
"""The first line of a worker: the backend is loaded, or loading it raised an exception."""


def main(accelerator: str, mode: str, read: int, write: int) -> None:
    """Serve until IN is closed."""
    _guard(read, write)
    from deepinfer.backend.registry import select_backend
    from deepinfer.conformance.document import verdict_to_dict
    from deepinfer.conformance.registry import Check, by_id
    from deepinfer.conformance.subject import Subject

    with os.fdopen(read, "r") as requests, os.fdopen(write, "w") as replies:
        try:
            subject = Subject.load(select_backend(accelerator, mode or None))
        except Exception:
            print(RAISED.decode(), file=replies, flush=True)
            raise
        print(READY.decode(), file=replies, flush=True)
        for line in requests:
            asked = json.loads(line)
            found = by_id(asked["id"])
            check = Check(found.case, asked["thorough"], found.invalid)
            verdict = check.run(subject, asked["perf"])
            print(json.dumps(verdict_to_dict(verdict)), file=replies, flush=True)


def _guard(read: int, write: int) -> None:
    """Start a process that ends this process group once IN has no writer any more.

    The command may be killed while a case hangs, and a hanging case can hold every thread of this
    process. So another process waits, which is started while this one is still small.
    """
    if os.fork():
        return
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 2)
        os.close(write)
        gone = io_select.poll()
        gone.register(read, 0)  # the end of a pipe is reported unasked
        gone.poll()
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
