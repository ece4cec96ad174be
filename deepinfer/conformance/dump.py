"""`dump_case`: inputs, expected and got outputs of a case as files, and a script that repeats it.

A kernel author loads the tensors into a debugger. The script runs the same case in its own process.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from deepinfer.conformance.case import Case
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import expected_outputs, got_outputs
from deepinfer.conformance.judging import shortened
from deepinfer.conformance.properties import drawn_case, is_property, smallest_case
from deepinfer.conformance.registry import Check
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import OperatorSuite, generator_of
from deepinfer.conformance.trees import tensors
from deepinfer.errors import UsageError

_SCRIPT = '''"""Replays one case of the conformance suite and prints its verdict."""

from deepinfer.backend.registry import select_backend
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject

case = {case!r}
subject = Subject.load(select_backend({accelerator!r}, {mode!r}))
print(by_id(case).run(subject))
'''


def dump_case(check: Check, subject: Subject, directory: Path) -> Path:
    """Write inputs.pt, expected.pt, got.pt and replay.py into a folder named after the case.

    got.txt stands in place of got.pt where the backend gives no outputs.
    """
    if check.case.operator not in SUITES:
        raise UsageError(f"{check.id}: --dump writes cases of one operator; run this with --case")
    suite = SUITES[check.case.operator]
    if is_property(check.case):
        return _dump_property(check.case, suite, subject, directory)
    return _dump(check, check.case, suite, subject, directory)


def _dump_property(case: Case, suite: OperatorSuite, subject: Subject, directory: Path) -> Path:
    """Write the smallest case that breaks a property."""
    smallest = smallest_case(case, suite, subject)
    if smallest is None:
        raise UsageError(f"{case.id}: none of the drawn cases breaks it, so none is written")
    return _dump(Check(smallest), drawn_case(smallest), suite, subject, directory)


def _dump(
    check: Check, case: Case, suite: OperatorSuite, subject: Subject, directory: Path
) -> Path:
    if check.invalid is not None:
        arguments = check.invalid.arguments
    else:
        arguments = suite.inputs(case, generator_of(case))
    folder = directory / re.sub(r"[^\w.=-]+", "_", check.id).strip("_")[:200]
    script = _SCRIPT.format(case=check.id, accelerator=subject.name, mode=subject.mode)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(dict(tensors(arguments)), folder / "inputs.pt")
        (folder / "replay.py").write_text(script)
        if check.invalid is None:
            torch.save(expected_outputs(case, suite, subject), folder / "expected.pt")
            _dump_got(case, suite, subject, folder)
    except OSError as error:
        raise UsageError(f"dump directory {str(directory)!r}: {error.strerror}") from error
    return folder


def _dump_got(case: Case, suite: OperatorSuite, subject: Subject, folder: Path) -> None:
    """Write got.pt; where the backend gives no outputs, got.txt says what it raised or wrote."""
    try:
        got = got_outputs(case, suite, subject)
    except Exception as error:
        (folder / "got.txt").write_text(f"{shortened(error)}\n")
    else:
        torch.save(got, folder / "got.pt")
