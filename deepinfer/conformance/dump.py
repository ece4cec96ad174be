"""`dump_case`: inputs, expected and got outputs of a case as files, and a script that replays it.

A kernel author loads the tensors into whatever debugger there is; the script runs the same case in
this process.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import expected_outputs, got_outputs
from deepinfer.conformance.registry import Check
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import generator_of
from deepinfer.conformance.trees import tensors
from deepinfer.errors import UsageError

_SCRIPT = '''"""Replays one case of the conformance suite and prints its verdict."""

from deepinfer.backend.registry import select
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject

case = {case!r}
subject = Subject.load(select({accelerator!r}, {mode!r}))
print(by_id(case).run(subject))
'''


def dump_case(check: Check, subject: Subject, directory: Path) -> Path:
    """Write inputs.pt, expected.pt, got.pt and replay.py into a folder named after the case."""
    suite = SUITES[check.case.operator]
    if check.invalid is not None:
        arguments = check.invalid.arguments
    else:
        arguments = suite.inputs(check.case, generator_of(check.case))
    folder = directory / re.sub(r"[^\w.=-]+", "_", check.id).strip("_")[:200]
    script = _SCRIPT.format(case=check.id, accelerator=subject.name, mode=subject.mode)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({name: value for name, value in tensors(arguments)}, folder / "inputs.pt")
        (folder / "replay.py").write_text(script)
        if check.invalid is None:
            torch.save(expected_outputs(check.case, suite, subject), folder / "expected.pt")
            torch.save(got_outputs(check.case, suite, subject), folder / "got.pt")
    except OSError as error:
        raise UsageError(f"dump directory {str(directory)!r}: {error.strerror}") from error
    return folder
