"""One worker process: reads ids of cases, writes verdicts, one JSON line each.

    python -m deepinfer.conformance.worker ACCELERATOR MODE IN OUT

IN and OUT are file descriptors. What a backend prints goes to the usual streams.
"""

from __future__ import annotations

import json
import os
import sys

from deepinfer.backend.registry import select
from deepinfer.conformance.document import verdict_to_dict
from deepinfer.conformance.registry import Check, by_id
from deepinfer.conformance.subject import Subject


def main(accelerator: str, mode: str, read: int, write: int) -> None:
    """Serve until IN is closed."""
    subject = Subject.load(select(accelerator, mode or None))
    with os.fdopen(read, "r") as requests, os.fdopen(write, "w") as replies:
        print("ready", file=replies, flush=True)
        for line in requests:
            asked = json.loads(line)
            found = by_id(asked["id"])
            check = Check(found.case, asked["thorough"], found.invalid)
            verdict = check.run(subject, asked["perf"])
            print(json.dumps(verdict_to_dict(verdict)), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
