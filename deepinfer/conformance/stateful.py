"""State across steps: the cache after some length is the same, however the sequence got there.

A sequence may be computed in pieces or as a whole, with rows taken back, preempted and computed
again, exported into another pool or another backend, forked and continued apart. Bits are equal
where the providers of the operators declare batch invariance. Elsewhere the limits of stored
entries apply.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from deepinfer.backend import CallSpec
from deepinfer.backend.resolution import Operators
from deepinfer.conformance.case import Case, Tier, Verdict
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.compare import compare
from deepinfer.conformance.context_run import LENGTH, ContextRun, Tokens, random_tokens
from deepinfer.conformance.judging import CheckFailed, Found, batch_invariant, judge
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import generator_of
from deepinfer.conformance.tolerances import EXACT, STORED_CODES, Tolerance, float_tolerance

HIDDEN = 96
MOST_DRAFTS = 6


class StatefulSuite(ABC):
    """Cases about state. `compare` raises `CheckFailed` where a property does not hold."""

    operator: ClassVar[str]

    @abstractmethod
    def grid(self, tier: Tier) -> Iterator[Case]:
        """The cases of a tier."""

    @abstractmethod
    def compare(self, case: Case, bench: Bench) -> None:
        """Run the histories of a case and compare the caches that they leave."""

    def check(self, case: Case, subject: Subject) -> Verdict:
        """The verdict of a case."""
        return judge(case, lambda found: self.compare(case, Bench(case, subject, found)))


class Bench:
    """What the histories of one case share: operators, weights, tokens, and the comparison."""

    def __init__(self, case: Case, subject: Subject, found: Found) -> None:
        self.case = case
        self.subject = subject
        self.found = found
        layer_case = Case.of(
            "update_context",
            {
                "ratio": case.size("ratio"),
                "head_dim": 64,
                "index_dim": 32,
                "hidden": HIDDEN,
                "rotated": 16,
                "weight": "bf16",
                "layout": "prompt",
                "length": LENGTH,
            },
            dtype=case.dtype,
            numerics=case.numerics,
        )
        suite = SUITES["update_context"]
        self.calls: list[CallSpec] = suite.calls(layer_case)
        self.layer = suite.inputs(layer_case, generator_of(layer_case))
        self.operators: Operators = subject.operators(self.calls)
        found.provider = self.operators.bindings["update_context"].provider
        names = {call.operator for call in self.calls} | {"store"}
        self.exact = batch_invariant(self.operators, subject, names)
        self.tokens = random_tokens(case, HIDDEN, 0)
        self.others = random_tokens(case, HIDDEN, 1)
        self._salt = itertools.count()

    def new(self, operators: Operators | None = None) -> ContextRun:
        """A new sequence, on the subject's operators or on others."""
        return ContextRun(self.case, operators or self.operators, self.layer, next(self._salt))

    def whole(self, tokens: Tokens, length: int) -> dict[str, Tensor]:
        """The entries of a sequence that was computed in one step."""
        run = self.new()
        run.step(tokens, 0, length)
        return run.entries(length)

    def same(self, got: Mapping[str, Tensor], want: Mapping[str, Tensor], what: str) -> None:
        """Raise `CheckFailed` unless both hold the same."""
        for name, tensor in want.items():
            limit: Tolerance = EXACT
            if not self.exact:
                limit = float_tolerance("fp32") if name == "members" else STORED_CODES
            found = compare(f"{what}: {name}", got[name], tensor, limit)
            self.found.note(f"{name}:{limit.metric}", found.used)
            if not found.kept:
                raise CheckFailed(found.failure, found.message)


def _grid(name: str, facts: list[dict[str, Any]], **more: Any) -> Iterator[Case]:
    for ratio in (1, 2):
        for numerics, dtype in (("ref", "bf16"), ("infer", "bf16"), ("ref", "fp32")):
            for own in facts:
                yield Case.of(name, {"ratio": ratio, **own}, dtype=dtype, numerics=numerics, **more)


class Chunks(StatefulSuite):
    """A sequence in chunks of any size against one step."""

    operator = "stateful.chunks"

    def grid(self, tier: Tier) -> Iterator[Case]:
        sizes = [1, 2, 3, 5, 16, 17]
        yield from _grid(self.operator, [{"chunk": size} for size in sizes])
        if tier.includes(Tier.FULL):
            facts = [{"chunk": 0, "draw": draw} for draw in range(20)]
            yield from _grid(self.operator, facts, tier=Tier.FULL)

    def compare(self, case: Case, bench: Bench) -> None:
        run, start = bench.new(), 0
        generator = generator_of(case)
        while start < LENGTH:
            size = case.size("chunk") or int(torch.randint(1, 18, (1,), generator=generator))
            stop = min(start + size, LENGTH)
            run.step(bench.tokens, start, stop)
            start = stop
        bench.same(run.entries(LENGTH), bench.whole(bench.tokens, LENGTH), "in pieces and whole")


class Rollback(StatefulSuite):
    """k rows are written, j of them kept, then others follow: as if only j had been written."""

    operator = "stateful.rollback"

    def grid(self, tier: Tier) -> Iterator[Case]:
        # 16 offsets: every one modulo ratio (1, 2), page (4) and block (16) of the geometry.
        for case in _grid(self.operator, [{"offset": offset} for offset in range(1, 17)]):
            plain = case.numerics == "ref" and case.dtype == "bf16"
            yield case if plain else replace(case, tier=Tier.FULL)

    def compare(self, case: Case, bench: Bench) -> None:
        start = case.size("offset") + 8
        wanted: dict[int, dict[str, Tensor]] = {}
        for written in range(1, MOST_DRAFTS + 1):
            for kept in range(written + 1):
                tokens = bench.tokens.with_other(start + kept, bench.others)
                run = bench.new()
                run.step(bench.tokens, 0, start)
                run.step(bench.tokens, start, start + written)
                end = start + kept + 3
                run.step(tokens, start + kept, end)
                if kept not in wanted:
                    wanted[kept] = bench.whole(tokens, end)
                what = f"{written} rows written at {start}, {kept} kept"
                bench.same(run.entries(end), wanted[kept], what)


class Resumed(StatefulSuite):
    """A sequence loses its memory and is computed again, in other blocks and other chunks."""

    operator = "stateful.resumed"

    def grid(self, tier: Tier) -> Iterator[Case]:
        yield from _grid(self.operator, [{"length": length} for length in (1, 15, 16, 33)])

    def compare(self, case: Case, bench: Bench) -> None:
        length = case.size("length")
        first = bench.new()
        for position in range(length):
            first.step(bench.tokens, position, position + 1)
        again = bench.new()
        again.step(bench.tokens, 0, length)
        for run in (first, again):
            run.step(bench.tokens, length, length + 5)
        end = length + 5
        bench.same(again.entries(end), first.entries(end), "preempted and resumed")


class Moved(StatefulSuite):
    """A sequence is exported and imported: within the backend, to the reference, and from it."""

    operator = "stateful.moved"

    def grid(self, tier: Tier) -> Iterator[Case]:
        facts = [{"length": n, "way": way} for n in (1, 16, 29) for way in ("own", "to", "from")]
        yield from _grid(self.operator, facts)

    def compare(self, case: Case, bench: Bench) -> None:
        length, way = case.size("length"), str(case.fact("way"))
        truth = bench.subject.truth
        source = bench.new(truth if way == "from" else None)
        target = bench.new(truth if way == "to" else None)
        source.step(bench.tokens, 0, length)
        target.import_(source.export())
        target.take_state(source)
        got, want = target.entries(length), source.entries(length)
        for name, tensor in want.items():  # nothing was computed on the way: always equal
            found = compare(f"moved ({way}): {name}", got[name], tensor, EXACT)
            if not found.kept:
                raise CheckFailed(found.failure, found.message)
        target.step(bench.tokens, length, length + 3)
        if way == "own":
            source.step(bench.tokens, length, length + 3)
            end = length + 3
            bench.same(target.entries(end), source.entries(end), "continued after the move")


class Forked(StatefulSuite):
    """Two sequences that are equal up to a point and then continue differently.

    way "shared": in the same pools, with common full blocks and a copy of the last one; without a
    way, each in its own pools.
    """

    operator = "stateful.forked"

    def grid(self, tier: Tier) -> Iterator[Case]:
        yield from _grid(self.operator, [{"length": length} for length in (1, 15, 16, 17, 30)])
        facts = [{"length": length, "way": "shared"} for length in (1, 16, 30)]
        yield from _grid(self.operator, facts)

    def compare(self, case: Case, bench: Bench) -> None:
        length = case.size("length")
        parent = bench.new()
        parent.step(bench.tokens, 0, length)
        before = parent.entries(length)
        if dict(case.facts).get("way") == "shared":
            child = parent.fork(length)
        else:
            child = bench.new()
            child.import_(parent.export())
            child.take_state(parent)
        other = bench.tokens.with_other(length, bench.others)
        child.step(other, length, length + 6)
        bench.same(parent.entries(length), before, "the parent beside its child")
        parent.step(bench.tokens, length, length + 6)
        end = length + 6
        bench.same(child.entries(end), bench.whole(other, end), "the child")
        bench.same(parent.entries(end), bench.whole(bench.tokens, end), "the parent")


STATEFUL: Mapping[str, StatefulSuite] = {
    suite.operator: suite for suite in (Chunks(), Rollback(), Resumed(), Moved(), Forked())
}
