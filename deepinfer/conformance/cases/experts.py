"""Cases of `route`, `dispatch` and `combine`. The cases of MLPs are in `mlp.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, Contract, Fact, Group, Routing
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.specs import ROWS
from deepinfer.conformance.oracles import experts as oracle
from deepinfer.conformance.suite import (
    Arguments,
    OperatorSuite,
    Outputs,
    numerics_of,
)
from deepinfer.conformance.tolerances import EXACT, FP32_ELEMENT, FP64_ELEMENT, Tolerance
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES

NUMERICS = ("ref", "infer")
SCALE = 1.5
MARGIN = 1e-4
"""The least relative distance of two scores: the order of nearer ones depends on rounding."""


def wide_dtype(dtype: str) -> torch.dtype:
    """The dtype of router logits and weights at a compute precision."""
    return torch.float64 if dtype == "fp64" else torch.float32


def random_routing(
    rows: int, experts: int, k: int, generator: torch.Generator, dtype: torch.dtype
) -> Routing:
    """A routing with k different experts for each row and weights from 0.1 to 1."""
    ids = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :k]
    weights = 0.1 + 0.9 * torch.rand(rows, k, generator=generator)
    return Routing(ids.to(torch.int32).contiguous(), weights.to(dtype))


def routing_of(case: Case, generator: torch.Generator) -> Routing:
    """The routing of a case, by its fact `pattern`.

    spread, or no pattern: random experts. one: expert 0 for all rows. last: the last expert for all
    rows. few: only two of the experts. all: the same experts for all rows.
    """
    rows, experts, k = (case.size(name) for name in ("rows", "experts", "top_k"))
    routing = random_routing(rows, experts, k, generator, wide_dtype(case.dtype))
    chosen = {
        "one": torch.zeros(rows, k),
        "last": torch.full((rows, k), experts - 1),
        "few": torch.arange(rows)[:, None] % 2 + 2 * torch.arange(k),
        "all": torch.arange(k).expand(rows, k),
    }.get(str(dict(case.facts).get("pattern")))
    return routing if chosen is None else routing._replace(ids=chosen.to(torch.int32).clone())


def settled(logits: Tensor, added: Tensor, k: int) -> Tensor:
    """Which rows [T] have one right choice of experts, whatever the rounding.

    Their best k + 1 sums of score and bias [T, E] are far apart, or have equal logits and equal
    biases, so that every implementation finds a tie and breaks it by the same rule.
    """
    scores = torch.sqrt(torch.nn.functional.softplus(logits.double(), threshold=700.0))
    chosen = (scores + added.double()).sort(-1, descending=True)
    best = chosen.values[:, : k + 1]
    gap = best[:, :-1] - best[:, 1:]
    same = _next_equal(logits, chosen.indices) & _next_equal(added, chosen.indices)
    return ((gap > MARGIN * best.abs().amax(-1, keepdim=True)) | same[:, : gap.shape[1]]).all(-1)


def _next_equal(values: Tensor, order: Tensor) -> Tensor:
    ordered = values.gather(1, order)
    return ordered[:, :-1] == ordered[:, 1:]


class Route(OperatorSuite):
    """`route`: the chosen experts and their weights."""

    operator = "route"
    row_arguments = ("logits", "image_mask")
    row_outputs = ("ids", "weights")
    nan_argument = "logits"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, rows in ROWS.items():
            yield self._case(rows, 8, 3, edge=edge)
        for experts, k in ((1, 1), (2, 2), (5, 4), (33, 6), (128, 3), (384, 6)):
            yield self._case(7, experts, k, edge="count")
        for values in ("large", "ties", "zeros", "low"):
            for experts, k in ((8, 3), (40, 6)):
                yield self._case(6, experts, k, values=values)
        for dtype in ("fp32", "fp64"):
            yield self._case(17, 8, 3, dtype, edge="tile+1")
            yield self._case(6, 40, 6, dtype, values="ties")
        if tier.includes(Tier.FULL):
            for seed in range(1, 9):
                for experts, k in ((128, 3), (384, 6)):
                    yield self._case(257, experts, k, edge="released", seed=seed, tier=Tier.FULL)

    def _case(self, rows: int, experts: int, k: int, dtype: str = "bf16", **more: Any) -> Case:
        facts = {"rows": rows, "experts": experts, "top_k": k, "scale": SCALE}
        return Case.of("route", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, experts, k = (case.size(name) for name in ("rows", "experts", "top_k"))
        plain = case.values in ("ties", "zeros")  # equal logits with equal biases tie
        bias, image_bias = (
            torch.randint(0, 2, (experts,), generator=generator) / 8.0
            if plain
            else torch.randn(experts, generator=generator)
            for _ in range(2)
        )
        image_mask = torch.rand(rows, generator=generator) < 0.4
        if rows > 1:
            image_mask[:2] = torch.tensor([True, False])
        added = torch.where(image_mask[:, None], image_bias, bias)
        logits = self._logits(case, (rows, experts), generator)
        while not bool((good := settled(logits, added, k)).all()):
            again = self._logits(case, (rows, experts), generator)
            logits = torch.where(good[:, None], logits, again)
        return {
            "logits": logits,
            "bias": bias,
            "image_bias": image_bias,
            "image_mask": image_mask,
            "k": k,
            "scale": SCALE,
        }

    @staticmethod
    def _logits(case: Case, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        dtype = wide_dtype(case.dtype)
        if case.values == "low":  # scores from 1e-4 to 1e-17, far below the biases
            return (torch.randn(*shape, generator=generator) * 15 - 50).clamp(-80, -20).to(dtype)
        logits = make(case.values, shape, generator, dtype)
        return logits.abs() if case.values == "large" else logits * 2

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if output == "ids":
            return EXACT
        return FP64_ELEMENT if case.dtype == "fp64" else FP32_ELEMENT

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        ids, weights = oracle.route(**arguments)
        return {"ids": ids, "weights": weights.to(wide_dtype(case.dtype))}


class Dispatch(OperatorSuite):
    """`dispatch`: rows are given to experts, and the routing stays unchanged."""

    operator = "dispatch"
    row_arguments = ("a", "routing")
    row_outputs = ("ids", "weights")

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, rows in ROWS.items():
            yield self._case(rows, 8, 3, 64, edge=edge)
        yield self._case(3, 384, 6, 5120, edge="released")
        yield self._case(3, 8, 3, 128, "fp32", edge="count")
        for pattern, k in (("one", 1), ("last", 1), ("few", 2), ("all", 2)):
            yield self._case(33, 5, k, 32, pattern=pattern, edge="pattern")

    def _case(
        self,
        rows: int,
        experts: int,
        k: int,
        hidden: int,
        dtype: str = "bf16",
        pattern: str | None = None,
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {"rows": rows, "experts": experts, "top_k": k, "hidden": hidden}
        if pattern is not None:
            facts["pattern"] = pattern
        return Case.of("dispatch", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        x = torch.randn(case.size("rows"), case.size("hidden"), generator=generator)
        return {
            "a": Activation(x.to(COMPUTE_DTYPES[case.dtype])),
            "routing": routing_of(case, generator),
            "group": Group(),
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        """The routing alone: a backend may hold the rows in any order and form."""
        return {"ids": result.routing.ids, "weights": result.routing.weights}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"ids": arguments["routing"].ids, "weights": arguments["routing"].weights}


EXPERTS = 4
"""`combine` has this many experts for each one that a row chooses."""


class Combine(OperatorSuite):
    """`combine`: the outputs of experts, summed in a stated order, so to the bit."""

    operator = "combine"
    row_arguments = ("outputs", "routing", "shared")
    nan_argument = "outputs"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics in NUMERICS:
            for edge, rows in ROWS.items():
                yield self._case(rows, 3, 64, numerics, edge=edge)
            for values in ("large", "ties", "zeros", "extreme", "cancelling", "nan_row"):
                for dtype in ("bf16", "fp32"):
                    yield self._case(5, 6, 48, numerics, dtype, values=values)
            for k in (1, 2, 8):
                yield self._case(5, k, 40, numerics, edge="count")
            yield self._case(17, 3, 64, numerics, "fp64", edge="tile+1")
            yield self._case(3, 6, 5120, numerics, edge="released")

    def _case(
        self, rows: int, k: int, hidden: int, numerics: str, dtype: str = "bf16", **more: Any
    ) -> Case:
        facts = {"rows": rows, "top_k": k, "hidden": hidden}
        return Case.of("combine", facts, dtype=dtype, numerics=numerics, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, k, hidden = (case.size(name) for name in ("rows", "top_k", "hidden"))
        dtype = COMPUTE_DTYPES[case.dtype]
        shape = rows, k, hidden
        if (
            case.values == "cancelling"
        ):  # with a large term and its negative, the order of the sum matters
            outputs = torch.randn(*shape, generator=generator)
            outputs[:, 0] = 2.0**12
            outputs[:, 1] = -(2.0**12)
        else:
            outputs = make(case.values, (rows, k, hidden), generator, torch.float32)
        name = "normal" if case.values == "cancelling" else case.values
        return {
            "outputs": outputs.to(dtype),
            "routing": random_routing(rows, EXPERTS * k, k, generator, wide_dtype(case.dtype)),
            "shared": make(name, (rows, hidden), generator, dtype),
            "numerics": numerics_of(case),
        }

    def inherited(self, case: Case) -> dict[str, Fact]:
        return {**super().inherited(case), "experts": EXPERTS * case.size("top_k")}

    def run(self, operators: Contract, arguments: Arguments) -> Any:
        """Dispatch first, with the same backend, since dispatched rows may carry its own state."""
        shared = arguments["shared"]
        routed = operators.dispatch(
            Activation(torch.zeros_like(shared)), arguments["routing"], Group()
        )
        routed.outputs = arguments["outputs"]
        return operators.combine(routed, shared, arguments["numerics"])

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        ids = arguments["routing"].ids
        return {
            "out": oracle.combine(
                arguments["outputs"], ids, arguments["shared"], arguments["numerics"]
            )
        }


ROUTING: tuple[OperatorSuite, ...] = (Route(), Dispatch(), Combine())
