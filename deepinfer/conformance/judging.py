"""Make a verdict from what a check does: passed, failed, unsupported, skipped or an error."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from deepinfer.backend import Backend
from deepinfer.backend.resolution import Operators
from deepinfer.conformance.case import Case, Failure, Outcome, Verdict
from deepinfer.conformance.hardware import MissingHardware
from deepinfer.conformance.subject import Subject
from deepinfer.errors import UnsupportedOperatorError

LONGEST = 2000
"""Characters of an exception's text that a verdict keeps at most."""


class CheckFailed(Exception):
    """A property that the contract asks for does not hold. failure: which kind of property."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class InvalidCase(Exception):
    """The suite cannot make the case, because its facts contradict each other."""


@dataclass
class Found:
    """What a check collects: who ran the operator, and the share used of each limit."""

    provider: str = ""
    used: dict[str, float] = field(default_factory=dict)

    def note(self, key: str, share: float) -> None:
        """Keep the largest share of a limit."""
        self.used[key] = max(self.used.get(key, 0.0), share)


def judge(case: Case, work: Callable[[Found], None]) -> Verdict:
    """Run a check and make its verdict. Never raises for what the backend does."""
    started = time.perf_counter()
    found = Found()
    outcome, failure, message = Outcome.PASSED, Failure.NONE, ""
    try:
        work(found)
    except CheckFailed as failed:
        outcome, failure, message = Outcome.FAILED, failed.failure, str(failed)
    except UnsupportedOperatorError as error:
        outcome, message = Outcome.UNSUPPORTED, str(error)
    except InvalidCase as error:
        outcome, message = Outcome.ERROR, str(error)
    except MissingHardware as lacking:
        outcome, message = Outcome.SKIPPED, str(lacking)
    except (Exception, SystemExit, GeneratorExit) as error:  # a backend may not end the run either
        outcome, message = Outcome.ERROR, shortened(error)
    seconds = time.perf_counter() - started
    return Verdict(case, outcome, found.provider, failure, message, found.used, seconds)


def batch_invariant(operators: Operators, subject: Subject, names: Iterable[str]) -> bool:
    """Whether every provider of these operators declares them batch-invariant.

    A composed step is batch-invariant if its parts are.
    """
    return all(name in by.batch_invariant for name, by in _run_by(operators, subject, names))


def deterministic(operators: Operators, subject: Subject, names: Iterable[str]) -> bool:
    """Whether no provider of these operators declares one of them nondeterministic."""
    return all(name not in by.nondeterministic for name, by in _run_by(operators, subject, names))


def _run_by(
    operators: Operators, subject: Subject, names: Iterable[str]
) -> Iterator[tuple[str, Backend]]:
    """Operators with the backend that runs them, composed steps left out."""
    backends = {
        "native": subject.backend,
        "fallback": subject.reference,
        "host": subject.truth.backend,
    }
    for name in names:
        provider = operators.bindings[name].provider
        if provider in backends:
            yield name, backends[provider]


def shortened(error: BaseException) -> str:
    """The exception, the beginning of its text, and where it was raised: its last frames."""
    try:
        text = str(error)
    except Exception as another:
        text = f"(its text cannot be had: {type(another).__name__})"
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text)} characters)"
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames[::-1])
    return f"{type(error).__name__}: {text} [{places}]"
