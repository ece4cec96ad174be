"""Writes docs/mutants.md: which case of the conformance suite catches which mutant first.

    python -m scripts.make_mutants_page [--check]

Runs every mutant of tests/conformance/mutants until a quick case fails (minutes), then the backend
without the fault on that case. Ends with status 1 where a mutant is not caught as its catalogue
says or the right backend fails too; --check writes nothing and ends with status 1 where the page is
stale as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from deepinfer.conformance.case import Outcome
from tests.conformance.mutants.catalogue import MUTANTS, Mutant
from tests.conformance.mutants.catching import CLEAR, first_failure, verdict_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "mutants.md"
COMMAND = "python -m scripts.make_mutants_page"

HEAD = """\
# Mutants

A mutant is the reference with one fault. It shows that the conformance suite sees this fault in a
backend: a quick case of the operator must fail, and the reference, which is the same but for the
fault, must pass that case. This page is generated (`{command}`,
which runs all of them); do not edit it. The classes are in `tests/conformance/mutants`, and
`tests/conformance/test_mutants.py` runs every line.

* *mutant*: its fault in short. It stands once for every operator at which it is to be seen.
* *operator*: whose cases are tried; `stateful.*` and `model.*` are suites of several calls.
* *first case*: the first one that fails, in the order of the suite; where a limit is broken, by
  {clear:g} times or more. `deepinfer conformance --case ID` runs it.
* *failure*: what is wrong in that case, in the words of a report. `nan` is also the word where an
  infinity stands in place of a number, or the reverse.
* *profile*: the smallest one that claims the operator. `core`, `batch-invariant` and `full` claim
  all operators.

{count} lines, {backends} backends.

"""
TITLES = ("mutant", "operator", "fault", "first case", "failure", "profile")


class Line(NamedTuple):
    """One line of the table."""

    name: str
    operator: str
    fault: str
    case_id: str
    failure: str
    profile: str

    @property
    def id(self) -> str:
        """The id of the mutant that it is about."""
        return f"{self.name}-{self.operator}"

    @classmethod
    def of(cls, mutant: Mutant, case_id: str) -> Line:
        """The line of a mutant that a case catches."""
        return cls(
            mutant.name,
            mutant.operator,
            mutant.fault,
            case_id,
            mutant.failure.value,
            mutant.profile,
        )


def page(lines: Iterable[Line]) -> str:
    """The whole page."""
    lines = list(lines)
    rows = [" | ".join(TITLES), " | ".join("---" for _ in TITLES)]
    for name, operator, fault, case_id, failure, profile in lines:
        rows.append(f"{name} | `{operator}` | {fault} | `{case_id}` | {failure} | `{profile}`")
    backends = len({mutant.backend for mutant in MUTANTS})
    head = HEAD.format(command=COMMAND, clear=CLEAR, count=len(lines), backends=backends)
    return head + "".join(f"| {row} |\n" for row in rows)


def read(text: str) -> list[Line]:
    """The lines of a page."""
    found = []
    for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)[2:]:
        found.append(Line(*(cell.strip("`") for cell in row.split(" | "))))
    return found


def tried(mutant: Mutant) -> Line:
    """Run a mutant; ValueError where no case catches it as stated, or one that is wrong itself."""
    verdict = first_failure(mutant.backend, mutant.operator, margin=CLEAR)
    if verdict is None:
        raise ValueError(
            f"{mutant.id} passes every quick case of {mutant.operator}, or breaks no limit clearly"
        )
    if (verdict.outcome, verdict.failure) != (Outcome.FAILED, mutant.failure):
        raise ValueError(f"{mutant.id}: expected failed ({mutant.failure}), got {verdict}")
    right = verdict_of(mutant.twin, verdict.case.id)
    if not right.passed:
        raise ValueError(f"{mutant.id} is caught by a case that fails without its fault: {right}")
    return Line.of(mutant, verdict.case.id)


def main() -> int:
    """Write or check the page; returns the exit status."""
    if sys.argv[1:] not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    lines, failed = [], False
    for mutant in MUTANTS:
        try:
            lines.append(tried(mutant))
        except ValueError as error:
            failed = True
            print(error, file=sys.stderr)
    if failed:
        return 1
    text = page(lines)
    if sys.argv[1:]:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
        print(f"{PAGE.name} is {'stale: run ' + COMMAND if stale else 'up to date'}")
        return int(stale)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
