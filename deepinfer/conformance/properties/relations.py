"""The properties: agreement with the reference, and relations between calls of the backend.

A relation needs no expected result: it compares calls of the tested backend with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend.resolution import Operators
from deepinfer.conformance.case import Case, Failure, Verdict
from deepinfer.conformance.check import check_batches, check_case
from deepinfer.conformance.compare import compare
from deepinfer.conformance.judging import CheckFailed, Found, judge
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import Arguments, OperatorSuite, generator_of
from deepinfer.conformance.tolerances import EXACT
from deepinfer.conformance.world import World
from deepinfer.formats import dequantise

Call = Callable[[Arguments], Any]
Holds = Callable[[Case, Operators, Arguments, Call], None]


@dataclass(frozen=True)
class Relation:
    """A property. operators: those that have it; None for all that `check` can be run on."""

    check: Callable[[Case, OperatorSuite, Subject], Verdict]
    operators: frozenset[str] | None = None


def _between(holds: Holds, *operators: str) -> Relation:
    """A relation between calls of the backend. `holds` raises `CheckFailed`."""

    def check(case: Case, suite: OperatorSuite, subject: Subject) -> Verdict:
        def work(found: Found) -> None:
            operators = subject.operators(suite.calls(case))
            found.provider = suite.provider(case, operators)
            arguments = suite.inputs(case, generator_of(case))

            def call(given: Arguments) -> Any:
                placed = World(operators).place(given)
                result = suite.run(operators, placed)
                operators.synchronise()
                return suite.outputs(case, result, placed) if result is not None else placed

            holds(case, operators, arguments, call)

        return judge(case, work)

    return Relation(check, frozenset(operators))


def _idempotent(case: Case, operators: Operators, arguments: Arguments, call: Call) -> None:
    """Values that were quantised once are quantised to themselves."""
    scheme, dtype = arguments["scheme"], arguments["x"].dtype
    if scheme is None or not bool(torch.isfinite(arguments["x"]).all()):
        return

    def through(x: Tensor) -> Tensor:
        found = call({**arguments, "x": x})
        codes, scales = (found[f"quantised.{half}"].cpu() for half in ("codes", "scales"))
        return dequantise(codes, scales, scheme, dtype)

    once = through(arguments["x"])
    if bool(torch.isfinite(once).all()):
        _same(through(once), once, "quantised twice and once")


def _monotone(case: Case, operators: Operators, arguments: Arguments, call: Call) -> None:
    """Within a group, a larger value is never quantised to a smaller one."""
    x, scheme = arguments["x"], arguments["scheme"]
    if scheme is None or not bool(torch.isfinite(x).all()):
        return
    groups = x.unflatten(-1, (-1, scheme.group_size)).sort(-1).values
    found = call({**arguments, "x": groups.flatten(-2)})
    codes, scales = (found[f"quantised.{half}"].cpu() for half in ("codes", "scales"))
    read = dequantise(codes, scales, scheme, torch.float64).view(groups.shape)
    if bool((read.diff(dim=-1) < 0).any()):
        place = torch.nonzero(read.diff(dim=-1) < 0)[0].tolist()
        raise CheckFailed(
            Failure.NUMBERS, f"a larger value was quantised to a smaller one at {place}"
        )


def _nested(case: Case, operators: Operators, arguments: Arguments, call: Call) -> None:
    """Everything that is chosen with k is also chosen with k + 1."""
    few, more = (call({**arguments, "k": arguments["k"] + extra}) for extra in (0, 1))
    name = "ids" if "ids" in few else "out"
    for row, (chosen, wider) in enumerate(
        zip(few[name].cpu().tolist(), more[name].cpu().tolist(), strict=True)
    ):
        lost = set(chosen) - set(wider) - {-1}
        if lost:
            k = arguments["k"]
            raise CheckFailed(
                Failure.NUMBERS,
                f"row {row}: {sorted(lost)} is chosen with k = {k} and not with k = {k + 1}",
            )


def _returned(case: Case, operators: Operators, arguments: Arguments, call: Call) -> None:
    """Images that are exported and imported into their own blocks leave the pool as it was."""
    placed = World(operators).place(arguments)
    before = placed["pool"].data.cpu().clone()
    images = operators.export(placed["pool"], placed["blocks"]).clone()
    placed["pool"].data[:, : arguments["pool"].image_bytes] ^= 0x5A
    moved = torch.isin(torch.arange(len(before)), arguments["blocks"])
    operators.import_(placed["pool"], placed["blocks"], images)
    operators.synchronise()
    after = placed["pool"].data.cpu()
    image = slice(0, arguments["pool"].image_bytes)
    _same(after[moved, image], before[moved, image], "exported and imported")


def _reread(case: Case, operators: Operators, arguments: Arguments, call: Call) -> None:
    """Entries that are loaded and stored again load to the same values."""
    values = arguments["values"]
    if not bool(torch.isfinite(values).all()):
        return
    read = []
    for _ in range(2):
        placed = World(operators).place({**arguments, "values": values})
        operators.store(placed["values"], placed["region"], placed["entries"], placed["batch"])
        batch, entries = placed["batch"], placed["entries"]
        values = operators.load(placed["region"], batch.sequence, entries, batch, values.dtype)
        operators.synchronise()
        values = values.cpu()
        read.append(values)
    if bool(torch.isfinite(read[0]).all()):
        _same(read[1], read[0], "stored twice and once")


def _same(got: Tensor, want: Tensor, what: str) -> None:
    found = compare(what, got, want, EXACT)
    if not found.kept:
        raise CheckFailed(found.failure, found.message)


def _drawn(case: Case, suite: OperatorSuite, subject: Subject) -> Verdict:
    return check_case(case, suite, subject)


RANDOM = "random"
RELATIONS: Mapping[str, Relation] = {
    RANDOM: Relation(_drawn),
    "batches": Relation(check_batches),
    "idempotent": _between(_idempotent, "quantise"),
    "monotone": _between(_monotone, "quantise"),
    "nested": _between(_nested, "top", "best_blocks"),
    "returned": _between(_returned, "export"),
    "reread": _between(_reread, "store"),
}
"""random: outputs agree with the reference, and all checks of a case pass. batches: results of rows
permuted and of a batch cut in two are those of the whole. The functions above describe the others.
"""


def applies(name: str, suite: OperatorSuite) -> bool:
    """Whether an operator has a property."""
    relation = RELATIONS[name]
    if name == "batches":
        return bool(suite.row_arguments) or type(suite).take is not OperatorSuite.take
    return relation.operators is None or suite.operator in relation.operators
