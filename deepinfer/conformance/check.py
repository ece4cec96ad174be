"""`check_case`: run one case on a subject and check its results and all declared properties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from deepinfer.backend import Activation, CallSpec
from deepinfer.backend.resolution import Operators
from deepinfer.conformance.case import Case, Failure, Verdict
from deepinfer.conformance.compare import Difference, compare
from deepinfer.conformance.hardware import MissingHardware, require_memory
from deepinfer.conformance.judging import (
    CheckFailed,
    Found,
    InvalidCase,
    batch_invariant,
    deterministic,
    judge,
    shortened,
)
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import (
    Arguments,
    Invalid,
    OperatorSuite,
    Outputs,
    generator_of,
)
from deepinfer.conformance.tolerances import EXACT, Metric, Tolerance
from deepinfer.conformance.trees import clone, tensors
from deepinfer.conformance.world import World, changed, host
from deepinfer.errors import UnsupportedOperatorError
from deepinfer.formats import quantise

_T = TypeVar("_T")

NAN = float("nan")
OUT_OF_MEMORY = (
    "allocate memory",
    "Storage size calculation overflowed",
    "Overflow when unpacking",
)
"""Parts of torch's messages about a tensor that is too large, whatever the exception's type."""


def check_invalid(invalid: Invalid, suite: OperatorSuite, subject: Subject) -> Verdict:
    """Run a case with invalid arguments: the operator must raise what the contract says."""

    def work(found: Found) -> None:
        operators = subject.operators(suite.calls(invalid.case))
        found.provider = suite.provider(invalid.case, operators)
        placed = World(operators).place(invalid.arguments)
        wanted = invalid.raises.__name__
        try:
            result = suite.run(operators, placed)
            operators.synchronise()
        except invalid.raises:
            return
        except UnsupportedOperatorError:
            raise
        except Exception as error:
            raise CheckFailed(
                Failure.RAISES, f"expected {wanted}, got {shortened(error)}"
            ) from error
        shapes = [list(tensor.shape) for _, tensor in tensors(result)]
        raise CheckFailed(Failure.RAISES, f"expected {wanted}, got a result of shape {shapes}")

    return judge(invalid.case, work)


def check_case(
    case: Case, suite: OperatorSuite, subject: Subject, *, thorough: bool = False
) -> Verdict:
    """Run a case and compare its outputs with the right ones.

    thorough: also repeat it, run rows alone and permuted, and put NaN into one row. Never raises
    for what the backend does: that is the outcome of the case.
    """
    return judge(case, lambda found: _Check(case, suite, subject, found).run(thorough))


def check_batches(case: Case, suite: OperatorSuite, subject: Subject) -> Verdict:
    """Run a case's rows permuted, and as two batches; results must be as in the whole."""
    return judge(case, lambda found: _Check(case, suite, subject, found).run_batches())


def expected_outputs(case: Case, suite: OperatorSuite, subject: Subject) -> Outputs:
    """The right outputs of a case, in the precision that its tolerances ask for."""
    arguments = suite.inputs(case, generator_of(case))
    return _Check(case, suite, subject, Found()).wanted(arguments)


def got_outputs(case: Case, suite: OperatorSuite, subject: Subject) -> Outputs:
    """The subject's outputs of a case. An exception of the backend is raised as it is."""
    arguments = suite.inputs(case, generator_of(case))
    check = _Check(case, suite, subject, Found())
    return check.ran(subject.operators(suite.calls(case)), arguments)


def _made(case: Case, suite: OperatorSuite) -> Arguments:
    """The arguments of a case; see `_made_by`."""
    return _made_by(lambda: suite.inputs(case, generator_of(case)))


def _calls(case: Case, suite: OperatorSuite) -> list[CallSpec]:
    """The calls of a case, which are traced on arguments of few rows; see `_made_by`."""
    return _made_by(lambda: suite.calls(case))


def _made_by(make: Callable[[], _T]) -> _T:
    """What `make` returns of a case.

    Errors: MissingHardware where it does not fit into memory, InvalidCase where the facts of the
    case contradict each other.
    """
    try:
        return make()
    except Exception as error:
        if isinstance(error, MemoryError) or any(word in str(error) for word in OUT_OF_MEMORY):
            raise MissingHardware(
                "host memory: the inputs of this case do not fit into it"
            ) from error
        raise InvalidCase(f"the suite cannot make this case: {shortened(error)}") from error


class _Check:
    def __init__(self, case: Case, suite: OperatorSuite, subject: Subject, found: Found) -> None:
        self.case = case
        self.suite = suite
        self.subject = subject
        self.found = found
        self.scores: Outputs = {}

    def run(self, thorough: bool) -> None:
        case, suite = self.case, self.suite
        calls = _calls(case, suite)
        require_memory(calls)
        operators = self.subject.operators(calls)
        self.found.provider = suite.provider(case, operators)
        arguments = _made(case, suite)
        got = self.ran(operators, arguments)
        want = self.wanted(arguments)
        self.same_names(got, want)
        self.scored(arguments, want)
        self.compared(got, want, self.suite.tolerance)
        if self.subject.is_reference:
            self.judged(got, arguments)
        if thorough:
            self.repeated(operators, arguments, got)
            self.rows_alone(operators, arguments, got, suite.samples(case, arguments))
            self.one_row_of_nan(operators, arguments)

    def run_batches(self) -> None:
        """Compare the subject's results for parts of a batch with its results for the whole."""
        case, suite = self.case, self.suite
        operators = self.subject.operators(suite.calls(case))
        self.found.provider = suite.provider(case, operators)
        arguments = _made(case, suite)
        got = self.ran(operators, arguments)
        self.scored(arguments, got)
        samples = list(suite.samples(case, arguments))
        count = suite.num_rows(case, arguments)
        if count > 1 and type(suite).samples is OperatorSuite.samples:
            cut = 1 + case.seed % (count - 1)
            samples += [
                (f"the first {cut} of {count} rows", torch.arange(cut)),
                (f"the last {count - cut} of {count} rows", torch.arange(cut, count)),
            ]
        self.rows_alone(operators, arguments, got, samples)

    def scored(self, arguments: Arguments, outputs: Outputs) -> None:
        """Keep the scores by which members of sets were chosen, if outputs are compared as sets."""
        case, suite, truth = self.case, self.suite, self.subject.truth
        if any(suite.tolerance(case, name).metric is Metric.SETS for name in outputs):
            self.scores = suite.scores(case, World(truth).place(clone(arguments)), truth)

    def ran(self, operators: Operators, arguments: Arguments) -> Outputs:
        """Run the operator and return its outputs on the host.

        Raises CheckFailed where it wrote what it may not write.
        """
        world = World(operators)
        placed = world.place(arguments)
        before = host(placed)
        result = self.suite.run(operators, placed)
        operators.synchronise()
        overrun = world.overrun()
        if overrun:
            raise CheckFailed(Failure.WRITE, f"written outside: {overrun}")
        allowed = self.suite.written(self.case, arguments)
        for message in changed(before, host(placed), allowed):
            raise CheckFailed(Failure.WRITE, message)
        outputs = self.suite.outputs(self.case, result, placed)
        return {name: output.detach().cpu().clone() for name, output in outputs.items()}

    def wanted(self, arguments: Arguments) -> Outputs:
        """The right outputs, in the precision that each one's tolerance asks for."""
        own = self._truth(arguments)
        wide: Outputs | None = None
        wanted = dict(own)
        for name, output in own.items():
            if not self.suite.tolerance(self.case, name).wide:
                continue
            if wide is None:
                wide = self._truth(self.suite.wide(self.case, arguments))
            wanted[name] = wide[name].to(output.dtype)
        return wanted

    def same_names(self, got: Outputs, want: Outputs) -> None:
        """Raise CheckFailed unless both sides have the same outputs."""
        differ = sorted(set(want) ^ set(got))
        if differ:
            raise CheckFailed(Failure.SHAPE, f"outputs that only one side has: {', '.join(differ)}")

    def _truth(self, arguments: Arguments) -> Outputs:
        truth = self.subject.truth
        placed = World(truth).place(clone(arguments))
        result = self.suite.run(truth, placed)
        return self.suite.outputs(self.case, result, placed)

    def compared(
        self,
        got: Outputs,
        want: Outputs,
        tolerance: Any,
        what: str = "",
        rows: Tensor | None = None,
    ) -> None:
        """Compare all outputs; CheckFailed for the first wrong one. rows: their numbers."""
        wrong: Difference | None = None
        for name, output in want.items():
            limit: Tolerance = tolerance(self.case, name)
            scores = self.scores.get(name)
            if scores is not None and rows is not None:
                scores = scores[rows]
            found = compare(f"{what}{name}", got[name], output, limit, scores)
            self.found.note(f"{name}:{limit.metric}", found.used)
            wrong = wrong or (None if found.kept else found)
        if wrong is not None:
            raise CheckFailed(wrong.failure, wrong.message)

    def judged(self, got: Outputs, arguments: Arguments) -> None:
        """Compare the reference with a definition that shares no code with it."""
        oracle = self.suite.oracle(self.case, arguments)
        if oracle is not None:
            self.compared(
                {name: got[name] for name in oracle}, oracle, self.suite.tolerance, "oracle: "
            )

    def repeated(self, operators: Operators, arguments: Arguments, got: Outputs) -> None:
        """Run the call again.

        Bits must be equal, or results within limits if an operator is declared nondeterministic.
        """
        again = self.ran(operators, arguments)
        if deterministic(operators, self.subject, self.names()):
            self.same_bits(again, got, Failure.REPEAT, "a repeat")
        else:
            self.compared(again, got, self.suite.tolerance, "a repeat: ")

    def rows_alone(
        self,
        operators: Operators,
        arguments: Arguments,
        got: Outputs,
        samples: Iterable[tuple[str, Tensor]],
    ) -> None:
        """Run some rows without the others.

        Bits must be equal where batch invariance is declared, and results within the tolerance
        elsewhere.
        """
        for what, rows in samples:
            taken = self.suite.take(self.case, arguments, rows)
            if taken is None:
                return
            part = {name: got[name][rows] for name in self.suite.row_outputs if name in got}
            again = self.ran(operators, taken)
            if batch_invariant(operators, self.subject, self.names()):
                self.same_bits(again, part, Failure.BATCH, what)
            else:
                self.compared(again, part, self.suite.tolerance, f"{what}: ", rows)

    def one_row_of_nan(self, operators: Operators, arguments: Arguments) -> None:
        """Put NaN into one row; no other row may change."""
        name = self.suite.nan_argument
        count = self.suite.num_rows(self.case, arguments)
        if not name or count < 2:
            return
        row = count // 2
        spoiled = clone(arguments)
        _fill(spoiled, name, row)
        others = torch.tensor([i for i in range(count) if i != row])
        clean = self.ran(operators, arguments)
        mixed = self.ran(operators, spoiled)
        for output in self.suite.row_outputs:
            if output in clean:
                part, whole = mixed[output][others], clean[output][others]
                what = f"rows beside the NaN of row {row}"
                if deterministic(operators, self.subject, self.names()):
                    self.same_bits({output: part}, {output: whole}, Failure.NAN, what)
                else:
                    again = {output: part}, {output: whole}
                    self.compared(*again, self.suite.tolerance, f"{what}: ", others)

    def names(self) -> set[str]:
        """Names of the operator and of those that it calls."""
        return {call.operator for call in self.suite.calls(self.case)}

    def same_bits(self, got: Outputs, want: Outputs, failure: Failure, what: str) -> None:
        """Raise CheckFailed with `failure` unless all outputs are equal bit for bit."""
        for name, output in want.items():
            found = compare(f"{what}: {name}", got[name], output, EXACT)
            if not found.kept:
                raise CheckFailed(failure, found.message)


def _fill(arguments: Arguments, path: str, row: int) -> None:
    """Put NaN into a row of the tensor at a dotted path, and into both halves of an activation."""
    owner: Any = None
    value: Any = arguments
    for part in path.split("."):
        owner, value = value, value[part] if isinstance(value, dict) else getattr(value, part)
    if not isinstance(value, Tensor):
        raise TypeError(f"{path} is no tensor")
    value[row] = NAN
    if isinstance(owner, Activation) and owner.quantised is not None and owner.scheme is not None:
        spoiled = quantise(value[row : row + 1], owner.scheme)
        for half, of_nan in zip(owner.quantised, spoiled, strict=True):
            half[row] = of_nan[0]


def thorough_cases(cases: list[Case], per_edge: int) -> Iterator[Case]:
    """The cases that are checked thoroughly: the first ones of each operator and edge."""
    seen: dict[tuple[str, str], int] = {}
    for case in cases:
        key = case.operator, case.edge
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= per_edge:
            yield case
