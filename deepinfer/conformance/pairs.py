"""Pairs: entries that one installed backend writes and another one reads.

A backend whose writer and reader share the same mistake passes every history of its own. Another
backend finds it. Bytes go through the host, so that the two may be of different devices.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Fact
from deepinfer.backend.registry import Installed, Selected, discover, select_backend
from deepinfer.backend.resolution import Operators
from deepinfer.conformance.case import Case, Tier, Verdict
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.cases.cache import FORMATS
from deepinfer.conformance.compare import compare
from deepinfer.conformance.judging import CheckFailed, Found, judge
from deepinfer.conformance.stateful import Bench
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import generator_of
from deepinfer.conformance.tolerances import EXACT
from deepinfer.conformance.world import World
from deepinfer.errors import UsageError
from deepinfer.settings import environment

logger = logging.getLogger(__name__)

PAIR = "stateful.pair"
CONTEXT = "context"
VALUES = ("normal", "ties", "extreme", "subnormal", "nan_row")
MORE_STEPS = 3


class Pair:
    """Cases of a writer and a reader. Fact `store`: a format, or "context" for a whole sequence."""

    operator = PAIR

    def grid(self, tier: Tier) -> Iterator[Case]:
        """No case: which pairs exist depends on what is installed; see `pair_cases`."""
        return iter(())

    def check(self, case: Case, subject: Subject) -> Verdict:
        """The verdict of a case. The subject is its writer or its reader."""

        def work(found: Found) -> None:
            sides = _Sides(case, subject, found)
            if case.fact("store") == CONTEXT:
                sides.sequence()
            else:
                sides.entries()

        return judge(case, work)


def pair_cases(tier: Tier, name: str, others: Iterable[str]) -> Iterator[Case]:
    """The pairs of a backend with each of some others, in both directions."""
    for other in others:
        for writer, reader in ((name, other), (other, name)):
            yield from _between(tier, {"writer": writer, "reader": reader})


def _between(tier: Tier, names: Mapping[str, Fact]) -> Iterator[Case]:
    for store in FORMATS:
        facts = {**names, "store": store, "length": 21, "ratio": 1 if store == "window" else 2}
        for values in VALUES:
            yield Case.of(PAIR, facts, values=values)
        yield Case.of(PAIR, facts, dtype="fp32")
    for ratio in (1, 2):
        for numerics, dtype in (("ref", "bf16"), ("infer", "bf16"), ("ref", "fp32")):
            for length in (29, 1, 16):
                own = Tier.QUICK if length == 29 else Tier.FULL
                if tier.includes(own):
                    facts = {**names, "store": CONTEXT, "length": length, "ratio": ratio}
                    yield Case.of(PAIR, facts, dtype=dtype, numerics=numerics, tier=own)


class _Sides:
    """Both backends of one case."""

    def __init__(self, case: Case, subject: Subject, found: Found) -> None:
        self.case = case
        self.subject = subject
        self.found = found
        self.writer, self.reader = (str(case.fact(side)) for side in ("writer", "reader"))
        if subject.name not in (self.writer, self.reader):
            raise UsageError(
                f"{case.id}: the backend that is tested is {subject.name!r}; run this case with "
                f"--accelerator {self.writer} or {self.reader}"
            )

    def tables(self, calls: Any) -> tuple[Operators, Operators]:
        """The writer's and the reader's operators."""
        writer, reader = (
            (self.subject if name == self.subject.name else partner(name)).operators(calls)
            for name in (self.writer, self.reader)
        )
        own = writer if self.writer == self.subject.name else reader
        self.found.provider = own.bindings["store"].provider
        return writer, reader

    def entries(self) -> None:
        """Entries of one format: the reader loads what the writer itself loads."""
        case, suite = self.case, SUITES["store"]
        form = str(case.fact("store"))
        facts: dict[str, Fact] = {"format": form, "width": 64, "layout": "padded"}
        facts |= {"pages": "small", **{name: case.size(name) for name in ("length", "ratio")}}
        store = Case.of("store", facts, dtype=case.dtype, values=case.values, seed=case.seed)
        calls = [*suite.calls(store), *SUITES["load"].calls(store)]
        writer, reader = self.tables(calls)
        arguments = suite.inputs(store, generator_of(store))
        placed = World(writer).place(arguments)
        suite.run(writer, placed)
        want = _loaded(writer, placed)
        arguments["region"].pool.data.copy_(placed["region"].pool.data.cpu())
        self.same(_loaded(reader, World(reader).place(arguments)), want, form)

    def sequence(self) -> None:
        """Move a sequence to the reader and continue it; what was written must not change."""
        bench, length = Bench(self.case, self.subject, self.found), self.case.size("length")
        writer, reader = self.tables(bench.calls)
        source, target = bench.new(writer), bench.new(reader)
        source.step(bench.tokens, 0, length)
        target.import_(source.export())
        target.take_state(source)
        want = source.entries(length)
        for name, got in target.entries(length).items():
            self.same(got, want[name], name)
        target.step(bench.tokens, length, length + MORE_STEPS)
        after = target.entries(length)
        for name in ("main", "index", "window"):
            self.same(after[name], want[name], f"{name}, after {MORE_STEPS} more rows,")

    def same(self, got: Tensor, want: Tensor, what: str) -> None:
        """Raise `CheckFailed` unless the reader has what the writer has.

        Nothing is computed in between, so the bytes are equal.
        """
        found = compare(f"{what} written by {self.writer} and read by {self.reader}",
                        got, want, EXACT)  # fmt: skip
        self.found.note(f"{what.split(',')[0]}:{EXACT.metric}", found.used)
        if not found.kept:
            raise CheckFailed(found.failure, found.message)


def _loaded(operators: Operators, placed: dict[str, Any]) -> Tensor:
    """All entries of the rows of a `store`, on the host."""
    batch = placed["batch"]
    rows = (placed["region"], batch.sequence, placed["entries"], batch)
    values = operators.load(*rows, torch.float32)
    operators.synchronise()
    return values.cpu()


def partners(chosen: Selected) -> list[str]:
    """Other installed backends that are usable and compute, by name.

    A backend whose plugin is broken is left out with a warning. So is one whose modes need other
    environment variables than this process has.
    """
    skip = environment.names(environment.SKIP_BACKENDS)
    variables = {**os.environ, **chosen.mode.environment}
    found = []
    for backend in discover({*skip, chosen.spec.name}):
        if backend.error:
            logger.warning("no pairs with backend %r: %s", backend.name, backend.reasons())
        elif backend.usable and backend.spec is not None and backend.spec.computes:
            if _mode(backend, variables) is None:
                logger.warning(
                    "no pairs with backend %r: none of its modes runs with the variables of %s, "
                    "mode %s",
                    backend.name,
                    chosen.spec.name,
                    chosen.mode.name,
                )
            else:
                found.append(backend.name)
    return found


@cache
def partner(name: str) -> Subject:
    """The other backend of a pair, in the first mode that this process can run."""
    skip = environment.names(environment.SKIP_BACKENDS)
    installed = {backend.name: backend for backend in discover(skip)}
    mode = _mode(installed[name], os.environ) if name in installed else None
    return Subject.load(select_backend(name, mode, skip))


def _mode(backend: Installed, variables: Mapping[str, str]) -> str | None:
    """The first mode whose environment variables are set as it needs them."""
    for mode in backend.spec.modes if backend.spec is not None else ():
        if all(variables.get(name) == value for name, value in mode.environment.items()):
            return mode.name
    return None
