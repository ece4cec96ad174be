"""Cases of `shared_mlp`, the shared expert, and `mixture`, the whole mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    ExpertSource,
    Fact,
    Group,
    MlpWeights,
    RouterWeights,
    Routing,
)
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.experts import (
    NUMERICS,
    SCALE,
    settled,
    wide_dtype,
)
from deepinfer.conformance.cases.matrices import expert, matrix
from deepinfer.conformance.cases.mlp import (
    FEW_ROWS,
    LIMIT,
    WEIGHT_VALUES,
    inputs_and_weights,
    mlp_output_tolerance,
    scheme_of,
)
from deepinfer.conformance.cases.specs import activation
from deepinfer.conformance.oracles import experts as oracle
from deepinfer.conformance.oracles.rows import weight_for
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs, numerics_of
from deepinfer.conformance.tolerances import (
    Tolerance,
)
from deepinfer.conformance.values import ShapesOnly, make
from deepinfer.conformance.world import ExpertSources
from deepinfer.formats.dtypes import COMPUTE_DTYPES


class SharedMlp(OperatorSuite):
    """`shared_mlp`: the shared expert, which is two matmuls, SwiGLU and a third matmul."""

    operator = "shared_mlp"
    row_arguments = ("a",)
    nan_argument = "a.values"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics in NUMERICS:
            for dtype in ("bf16", "fp32"):
                for edge, rows in FEW_ROWS.items():
                    yield self._case(rows, 64, 96, "fp8", numerics, dtype, edge=edge)
                for kind in ("bf16", "fp32"):
                    yield self._case(5, 64, 32, kind, numerics, dtype, edge="kind")
            yield self._case(5, 64, 32, "fp8", numerics, "fp64", edge="kind")
            for values in ("large", "ties", "zeros", "nan_row", *WEIGHT_VALUES):
                yield self._case(5, 64, 64, "fp8", numerics, values=values)
            for limit in (0.0, 1.5):
                yield self._case(5, 64, 64, "fp8", numerics, limit=limit, edge="limit")
            yield self._case(3, 128, 96, "fp8", numerics, limit=1.5, edge="golden")
            yield self._case(2, 1024, 512, "fp8", numerics, edge="deep")
            yield self._case(2, 64, 8192, "fp8", numerics, edge="deep")
        if tier.includes(Tier.FULL):
            for numerics in NUMERICS:
                yield self._case(17, 5120, 2304, "fp8", numerics, edge="released", tier=Tier.FULL)

    def _case(
        self,
        rows: int,
        hidden: int,
        inner: int,
        kind: str,
        numerics: str,
        dtype: str = "bf16",
        limit: float = LIMIT,
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "hidden": hidden,
            "intermediate": inner,
            "weight": kind,
            "limit": limit,
        }
        return Case.of("shared_mlp", facts, dtype=dtype, numerics=numerics, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        of_rows, of_weights = inputs_and_weights(case)
        shape = case.size("rows"), case.size("hidden")
        x = make(of_rows, shape, generator, COMPUTE_DTYPES[case.dtype])
        return {
            "a": activation(x, scheme_of(case)),
            "weights": shared_weights(case, str(case.fact("weight")), generator, of_weights),
            "limit": case.fact("limit"),
            "numerics": numerics_of(case),
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return mlp_output_tolerance(case)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs | None:
        if case.size("hidden") > 2048:
            return None
        return {"out": shared_oracle(arguments["a"], arguments["weights"], case)}


def shared_weights(case: Case, kind: str, generator: torch.Generator, values: str) -> Any:
    """The matrices of the shared expert, to be packed."""
    one = expert(case.size("hidden"), case.size("intermediate"), kind, generator, values)
    parts: Any = one.w1, one.w2, one.w3
    return MlpWeights(*parts)


def shared_oracle(a: Activation, weights: Any, case: Case) -> Tensor:
    """The expected output of the shared expert."""
    source = ExpertSource(weights.w1, weights.w2, weights.w3)
    limit = float(case.fact("limit") or 0.0)
    x = oracle.consumed(a, source.w1.kind)
    matrices = oracle.Matrices.of(source, a.dtype)
    return oracle.expert(x, matrices, limit, None, numerics_of(case), a.dtype)


class Mixture(OperatorSuite):
    """`mixture`: the routed and the shared experts of a layer, from rows to sums."""

    operator = "mixture"
    row_arguments = ("a", "image_mask")
    nan_argument = "a.values"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics in NUMERICS:
            for dtype in ("bf16", "fp32"):
                for edge, rows in FEW_ROWS.items():
                    yield self._case(rows, 6, 3, 64, 32, True, numerics, dtype, edge=edge)
                yield self._case(5, 6, 3, 64, 32, False, numerics, dtype, edge="kind")
            yield self._case(5, 6, 3, 64, 32, True, numerics, "fp64", edge="kind")
            for values in ("large", "zeros", "nan_row", *WEIGHT_VALUES):
                yield self._case(5, 6, 2, 64, 32, True, numerics, values=values)
            for experts, k in ((1, 1), (3, 3), (128, 3), (384, 6)):
                yield self._case(3, experts, k, 32, 32, True, numerics, edge="count")
            yield self._case(5, 8, 3, 128, 96, True, numerics, limit=1.5, edge="golden")
            yield self._case(2, 6, 6, 64, 2304, True, numerics, edge="deep")
        if tier.includes(Tier.FULL):
            for numerics in NUMERICS:
                yield self._case(
                    3, 6, 6, 5120, 2304, True, numerics, edge="released", tier=Tier.FULL
                )

    def _case(
        self,
        rows: int,
        experts: int,
        k: int,
        hidden: int,
        inner: int,
        quantised: bool,
        numerics: str,
        dtype: str = "bf16",
        limit: float = LIMIT,
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "experts": experts,
            "top_k": k,
            "hidden": hidden,
            "intermediate": inner,
            "weight": "fp4" if quantised else "bf16",
            "limit": limit,
        }
        return Case.of("mixture", facts, dtype=dtype, numerics=numerics, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, experts, k = (case.size(name) for name in ("rows", "experts", "top_k"))
        hidden, inner, kind = case.size("hidden"), case.size("intermediate"), case.fact("weight")
        of_rows, of_weights = inputs_and_weights(case)
        gate: Any = matrix(experts, hidden, "bf16", generator)
        bias, image_bias = (torch.randn(experts, generator=generator) for _ in range(2))
        image_mask = torch.arange(rows) % 3 == 1
        added = torch.where(image_mask[:, None], image_bias, bias)
        x = make(of_rows, (rows, hidden), generator, COMPUTE_DTYPES[case.dtype])
        if not isinstance(generator, ShapesOnly):  # there is no value to choose a gate by
            decoded = weight_for(gate, torch.bfloat16)
            while not bool((good := self._settled(x, decoded, added, k)).all()):
                again = make(of_rows, (rows, hidden), generator, COMPUTE_DTYPES[case.dtype])
                x = torch.where(good[:, None], x, again)
        sources = (expert(hidden, inner, str(kind), generator, of_weights) for _ in range(experts))
        shared = "fp8" if kind == "fp4" else str(kind)
        return {
            "a": activation(x, scheme_of(case)),
            "router": RouterWeights(gate, bias, image_bias, k, SCALE),
            "experts": ExpertSources(tuple(sources)),
            "shared": shared_weights(case, shared, generator, of_weights),
            "image_mask": image_mask,
            "limit": case.fact("limit"),
            "group": Group(),
            "numerics": numerics_of(case),
        }

    @staticmethod
    def _settled(x: Tensor, gate: Tensor, added: Tensor, k: int) -> Tensor:
        """Which rows have a choice of experts that does not depend on rounding, or NaN."""
        return settled(x.double() @ gate.T, added, k) | torch.isnan(x).any(-1)

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return mlp_output_tolerance(case)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs | None:
        if case.size("hidden") > 2048 or case.values == "nan_row":
            return None
        a, router = arguments["a"], arguments["router"]
        wide = wide_dtype(case.dtype)
        logits = a.values.double() @ weight_for(router.gate, a.dtype).T
        ids, weights = oracle.route(
            logits.to(wide),
            router.bias,
            router.image_bias,
            arguments["image_mask"],
            router.top_k,
            router.scale,
        )
        numerics = arguments["numerics"]
        outputs = oracle.experts(
            a,
            Routing(ids, weights.to(wide)),
            arguments["experts"].sources,
            arguments["limit"],
            numerics,
        )
        shared = shared_oracle(a, arguments["shared"], case)
        return {"out": oracle.combine(outputs, ids, shared, numerics)}


MIXTURE: tuple[OperatorSuite, ...] = (SharedMlp(), Mixture())
