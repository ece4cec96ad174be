"""`OperatorSuite`: the cases and checks of one operator."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from deepinfer.backend import Batch, CallSpec, Contract, Fact, Numerics
from deepinfer.backend.resolution import Operators
from deepinfer.backend.trace import Tracer
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.tolerances import EXACT, Tolerance
from deepinfer.conformance.trees import map_leaves, tensors, widened
from deepinfer.conformance.values import ShapesOnly
from deepinfer.conformance.world import World

Arguments = dict[str, Any]
Outputs = dict[str, Tensor]


class Invalid(NamedTuple):
    """Arguments that the operator must refuse, and the exception that it must raise."""

    case: Case
    arguments: Arguments
    raises: type[Exception]


class OperatorSuite(ABC):
    """The cases of one operator: their inputs, what is compared, and which properties must hold.

    Arguments are those of the contract's method, by name, on the host; matrices are sources
    (`world.py`). row_arguments: names of arguments, or dotted paths of tensors in them, whose first
    axis counts rows; row_outputs: outputs whose first axis does. An empty list means that rows
    cannot be run alone. nan_argument: the argument that gets a row of NaN. first_call: the operator
    whose call stands first among those of a case; by default the suite's own. stated: facts of a
    case that its calls state in place of what is declared: a matmul with float32 weights is asked
    about as such.
    """

    operator: ClassVar[str]
    row_arguments: ClassVar[tuple[str, ...]] = ()
    row_outputs: ClassVar[tuple[str, ...]] = ("out",)
    nan_argument: ClassVar[str] = ""
    first_call: ClassVar[str] = ""
    stated: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def grid(self, tier: Tier) -> Iterator[Case]:
        """The declared cases of a tier, lower tiers included. Each id occurs once."""

    @abstractmethod
    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        """The arguments of a case, a function of the case alone."""

    def calls(self, case: Case) -> list[CallSpec]:
        """The operator's call as a model would list it, then the others that the case makes."""
        ranges = self.ranges(case)
        stated = {name: case.fact(name) for name in self.stated}
        return [
            replace(
                call,
                facts=tuple((name, stated.get(name, value)) for name, value in call.facts),
                ranges=tuple((name, ranges[name]) for name, _ in call.ranges),
            )
            for call in _traced(self, _smallest(case))
        ]

    def trace(self, case: Case, tracer: Tracer) -> None:
        """Make the calls of a case; nothing is computed."""
        arguments = self.inputs(case, ShapesOnly())
        self.run(tracer, World(tracer).place(arguments))

    def ranges(self, case: Case) -> dict[str, tuple[int, int]]:
        """Ranges of the calls of a case: rows, and length where it has one."""
        facts = dict(case.facts)
        if "length" in facts:
            length = max(1, case.size("length"))
            return {"rows": (1, 4 * length), "length": (1, length)}
        rows = max(1, case.size("rows")) if "rows" in facts else 1
        return {"rows": (rows, rows)}

    def inherited(self, case: Case) -> dict[str, Fact]:
        """Facts of the calls that their arguments do not show; see `Declaration.inherited`."""
        return {**dict(case.facts), "dtype": case.dtype}

    def facts_of(self, case: Case, call: CallSpec) -> dict[str, Fact]:
        """Facts that a case takes from a call of the model: by default those of the same name."""
        own = dict(case.facts)
        return {name: value for name, value in call.facts if name in own}

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        """What is compared, by name. By default the result, or its parts by their paths.

        arguments: as they are after the call, so that what was written in place can be read.
        """
        return {name or "out": tensor for name, tensor in tensors(result)}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return EXACT

    def written(self, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        """Elements of arguments that the operator may change, by dotted path; none by default."""
        return {}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs | None:
        """The outputs by a definition that shares no code with the reference, or None."""
        return None

    def scores(self, case: Case, arguments: Arguments, truth: Operators) -> Outputs:
        """Scores [T, columns] of outputs that are compared as sets; arguments are placed."""
        return {}

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments | None:
        """The arguments of some rows [n] only, in that order; None if rows cannot be run alone."""
        if not self.row_arguments:
            return None
        return {name: self._taken(name, value, rows) for name, value in arguments.items()}

    def samples(self, case: Case, arguments: Arguments) -> Iterator[tuple[str, Tensor]]:
        """Rows that are run again alone or in another order, with a name for each selection."""
        count = self.num_rows(case, arguments)
        if count:
            yield "the last row alone", torch.tensor([count - 1])
            yield "a permuted batch", torch.randperm(count, generator=generator_of(case))

    def num_rows(self, case: Case, arguments: Arguments) -> int:
        for name, tensor in tensors(arguments):
            if self._is_row(name):
                return tensor.shape[0]
        return 0

    def invalid(self) -> Iterator[Invalid]:
        return iter(())

    def wide(self, case: Case, arguments: Arguments) -> Arguments:
        """The same arguments in float64, for outputs whose tolerance is about the wide result."""
        narrow = (torch.bfloat16, torch.float32)
        wide: Arguments = map_leaves(
            lambda leaf: (
                torch.float64 if isinstance(leaf, torch.dtype) and leaf in narrow else leaf
            ),
            widened(arguments),
        )
        return wide

    def provider(self, case: Case, operators: Operators) -> str:
        """Who runs the operator: native, composed or fallback."""
        return operators.bindings[self.operator].provider

    def run(self, operators: Contract, arguments: Arguments) -> Any:
        """Call the operator with positional arguments, as the model does."""
        signature = inspect.signature(getattr(Contract, self.operator))
        return getattr(operators, self.operator)(*signature.bind(None, **arguments).args[1:])

    def _is_row(self, path: str) -> bool:
        return any(path == row or path.startswith(f"{row}.") for row in self.row_arguments)

    def _taken(self, name: str, value: Any, rows: Tensor) -> Any:
        if isinstance(value, Batch):
            raise NotImplementedError(f"{self.operator} takes a batch: it needs its own `take`")
        if not any(row == name or row.startswith(f"{name}.") for row in self.row_arguments):
            return value
        return map_leaves(
            lambda leaf: leaf[rows] if isinstance(leaf, Tensor) and leaf.dim() else leaf, value
        )


def _smallest(case: Case) -> Case:
    """A case of the same calls with as few rows as can be."""
    facts = dict(case.facts)
    facts |= {name: 1 for name in ("rows", "length") if name in facts}
    facts |= {"layout": "decode"} if "layout" in facts else {}
    return Case.of(case.operator, facts, dtype=case.dtype, numerics=case.numerics)


@lru_cache(maxsize=4096)
def _traced(suite: OperatorSuite, case: Case) -> tuple[CallSpec, ...]:
    """The calls that a case makes, each once; their ranges mean nothing."""
    anything = dict.fromkeys(("rows", "sequences", "length"), (1, 1))
    tracer = Tracer(anything, suite.inherited(case))
    suite.trace(case, tracer)
    first = suite.first_call or suite.operator
    return tuple(sorted(tracer.calls, key=lambda call: call.operator != first))


def generator_of(case: Case) -> torch.Generator:
    """The random numbers of a case: a function of its id."""
    digest = hashlib.blake2b(case.id.encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def numerics_of(case: Case) -> Numerics:
    """The numeric mode of a case that states one."""
    return Numerics(case.numerics or "ref")
