"""Cases of `swiglu` and of `expert_mlp`, the MLPs of routed experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    Contract,
    Fact,
    Group,
    Numerics,
)
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.experts import (
    NUMERICS,
    routing_of,
    wide_dtype,
)
from deepinfer.conformance.cases.matrices import expert
from deepinfer.conformance.cases.specs import activation
from deepinfer.conformance.oracles import experts as oracle
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs, numerics_of
from deepinfer.conformance.tolerances import (
    Tolerance,
    code_tolerance,
    float_tolerance,
    mlp_tolerance,
)
from deepinfer.conformance.values import make
from deepinfer.conformance.world import ExpertSources
from deepinfer.formats import dequantise
from deepinfer.formats.dtypes import COMPUTE_DTYPES

LIMIT = 10.0
FEW_ROWS = {"empty": 0, "one": 1, "tile-1": 15, "tile": 16, "tile+1": 17, "long": 40}
WEIGHT_VALUES = ("powers", "saturated")


def scheme_of(case: Case) -> str | None:
    """The block scheme of inputs of matmuls in the numeric mode of a case."""
    scheme = numerics_of(case).activation_scheme
    return None if scheme is None else scheme.value


def inputs_and_weights(case: Case) -> tuple[str, str]:
    """The value classes of rows and of matrices; the class of a case is one of either kind."""
    if case.values in WEIGHT_VALUES:
        return "normal", case.values
    return case.values, "normal"


class SwiGlu(OperatorSuite):
    """`swiglu`: the clamped gate, the weight of the row, and the quantiser after them."""

    operator = "swiglu"
    row_arguments = ("gate", "up", "weights")
    nan_argument = "gate"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics in NUMERICS:
            for weighted in (True, False):
                for dtype in ("bf16", "fp32"):
                    for edge, rows in FEW_ROWS.items():
                        yield self._case(rows, 64, 1.5, weighted, numerics, dtype, edge=edge)
                    yield self._case(3, 96, 0.0, weighted, numerics, dtype, edge="unclamped")
                    yield self._case(3, 2304, LIMIT, weighted, numerics, dtype, edge="released")
                yield self._case(4, 64, LIMIT, weighted, numerics, "fp64", edge="count")
            for values in (
                "large",
                "extreme",
                "saturated",
                "subnormal",
                "ties",
                "zeros",
                "nan_row",
            ):
                yield self._case(6, 128, LIMIT, True, numerics, values=values)
            yield self._case(6, 128, 0.0, True, numerics, values="large")
            for width in (32, 96, 512):
                yield self._case(3, width, 2.0, True, numerics, edge="width")
        yield self._case(3, 37, 1.5, True, "ref", edge="width")
        if tier.includes(Tier.FULL):
            for numerics in NUMERICS:
                for seed in range(1, 5):
                    yield self._case(
                        257, 2304, LIMIT, True, numerics, edge="released", seed=seed, tier=Tier.FULL
                    )

    def _case(
        self,
        rows: int,
        width: int,
        limit: float,
        weighted: bool,
        numerics: str,
        dtype: str = "bf16",
        **more: Any,
    ) -> Case:
        facts = {"rows": rows, "intermediate": width, "limit": limit, "weighted": weighted}
        return Case.of("swiglu", facts, dtype=dtype, numerics=numerics, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        shape = case.size("rows"), case.size("intermediate")
        spread = 2.0 if case.values == "normal" else 1.0
        gate, up = (
            make(case.values, shape, generator, COMPUTE_DTYPES[case.dtype]) * spread
            for _ in range(2)
        )
        weights = torch.rand(shape[0], generator=generator).to(wide_dtype(case.dtype))
        return {
            "gate": gate,
            "up": up,
            "limit": case.fact("limit"),
            "weights": weights if case.fact("weighted") else None,
            "numerics": numerics_of(case),
        }

    def outputs(self, case: Case, result: Activation, arguments: Arguments) -> Outputs:
        """In REF the values; in INFER the quantised half, since a backend need not keep values."""
        if numerics_of(case) is Numerics.REF or result.quantised is None or result.scheme is None:
            return {"out": result.values}
        codes, scales = result.quantised
        return {"out": dequantise(codes, scales, result.scheme, wide_dtype(case.dtype))}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if numerics_of(case) is Numerics.INFER:
            return code_tolerance(case.size("intermediate"))
        return float_tolerance(case.dtype, elementwise=True)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        named = ("gate", "up", "limit", "weights")
        out = oracle.gated(*(arguments[name] for name in named))
        if numerics_of(case) is Numerics.REF:
            return {"out": out.to(arguments["gate"].dtype)}
        wide = wide_dtype(case.dtype)
        return {"out": oracle.through_fp8(out.to(wide)).to(wide)}


class ExpertMlp(OperatorSuite):
    """`expert_mlp`: every dispatched row goes through its experts."""

    operator = "expert_mlp"
    row_arguments = ("a", "routing")
    nan_argument = "a.values"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics in NUMERICS:
            for dtype in ("bf16", "fp32"):
                for edge, rows in FEW_ROWS.items():
                    yield self._case(rows, 6, 3, 64, 96, "fp4", numerics, dtype, edge=edge)
                for kind in ("bf16", "fp32"):
                    yield self._case(17, 6, 3, 64, 96, kind, numerics, dtype, edge="tile+1")
            yield self._case(5, 6, 2, 64, 64, "fp4", numerics, "fp64", edge="count")
            for values in ("large", "extreme", "ties", "zeros", "nan_row", *WEIGHT_VALUES):
                yield self._case(6, 4, 2, 64, 64, "fp4", numerics, values=values)
            for pattern in ("one", "last", "few", "all"):
                yield self._case(
                    33, 5, 1 if pattern in ("one", "last") else 2, 32, 32, "fp4", numerics,
                    pattern=pattern, edge="pattern",
                )  # fmt: skip
            for limit in (0.0, 1.5):
                yield self._case(5, 4, 2, 64, 64, "fp4", numerics, limit=limit, edge="limit")
            for experts, k in ((1, 1), (3, 3), (128, 3), (384, 6)):
                yield self._case(4, experts, k, 32, 32, "fp4", numerics, edge="count")
            yield self._case(9, 8, 3, 128, 96, "fp4", numerics, limit=1.5, edge="golden")
            yield self._case(2, 4, 2, 1024, 512, "fp4", numerics, edge="deep")
            yield self._case(2, 6, 6, 64, 2304, "fp4", numerics, edge="deep")
        if tier.includes(Tier.FULL):
            for numerics in NUMERICS:
                yield self._case(
                    17, 6, 6, 5120, 2304, "fp4", numerics, edge="released", tier=Tier.FULL
                )

    def _case(
        self,
        rows: int,
        experts: int,
        k: int,
        hidden: int,
        inner: int,
        kind: str,
        numerics: str,
        dtype: str = "bf16",
        limit: float = LIMIT,
        pattern: str = "spread",
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "experts": experts,
            "top_k": k,
            "hidden": hidden,
            "intermediate": inner,
            "weight": kind,
            "limit": limit,
            "pattern": pattern,
        }
        return Case.of("expert_mlp", facts, dtype=dtype, numerics=numerics, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, experts = case.size("rows"), case.size("experts")
        hidden, inner, kind = case.size("hidden"), case.size("intermediate"), case.fact("weight")
        of_rows, of_weights = inputs_and_weights(case)
        x = make(of_rows, (rows, hidden), generator, COMPUTE_DTYPES[case.dtype])
        return {
            "a": activation(x, scheme_of(case)),
            "routing": routing_of(case, generator),
            "experts": ExpertSources(
                tuple(
                    expert(hidden, inner, str(kind), generator, of_weights) for _ in range(experts)
                )
            ),
            "limit": case.fact("limit"),
            "numerics": numerics_of(case),
        }

    def run(self, operators: Contract, arguments: Arguments) -> Tensor:
        """Dispatch first, with the same backend, since dispatched rows may carry its own state."""
        routed = operators.dispatch(arguments["a"], arguments["routing"], Group())
        rest = (arguments[name] for name in ("experts", "limit", "numerics"))
        outputs = operators.expert_mlp(routed, *rest).outputs
        assert outputs is not None, "expert_mlp left no outputs"
        return outputs

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return mlp_output_tolerance(case)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs | None:
        if case.size("hidden") > 2048:
            return None
        rest = (arguments["limit"], arguments["numerics"])
        sources = arguments["experts"].sources
        return {"out": oracle.experts(arguments["a"], arguments["routing"], sources, *rest)}


def mlp_output_tolerance(case: Case) -> Tolerance:
    """The tolerance of the output of an MLP, over all experts of a row."""
    terms = int(dict(case.facts).get("top_k") or 1) * case.size("intermediate")
    return mlp_tolerance(case.dtype, quantises(case), terms)


def quantises(case: Case) -> bool:
    """Whether a quantiser stands between the two matmuls."""
    quantised_weight = case.fact("weight") in ("fp8", "fp4")
    return numerics_of(case) is Numerics.INFER and quantised_weight


MLP: tuple[OperatorSuite, ...] = (SwiGlu(), ExpertMlp())
