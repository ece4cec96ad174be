"""Cases of the steps of the dense family: `project` and `logits`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import AttentionWeights, Fact, LinearSource
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.matrices import matrix
from deepinfer.conformance.cases.rotations import frequencies, positions
from deepinfer.conformance.cases.specs import (
    EPS,
    FEW_ROWS,
    ROWS,
    activation,
    read,
    scheme_of,
)
from deepinfer.conformance.oracles.rows import block_scaled, norm, product, rotated
from deepinfer.conformance.oracles.stored import consumed
from deepinfer.conformance.suite import (
    Arguments,
    OperatorSuite,
    Outputs,
    numerics_of,
)
from deepinfer.conformance.tolerances import (
    BF16_CHAIN,
    BF16_QUANTISED,
    Tolerance,
    float_tolerance,
)
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES


def norm_weight(width: int, generator: torch.Generator) -> Tensor:
    """A weight of a norm, with elements around 1."""
    return 1 + 0.1 * torch.randn(width, generator=generator)


class Project(OperatorSuite):
    """`project`: queries, query latent and window of each row."""

    operator = "project"
    stated = ("weight",)
    row_arguments = ("a", "positions")
    row_outputs = ("queries", "latent", "window")
    nan_argument = "a.values"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics in ("ref", "infer"):
            for dtype in COMPUTE_DTYPES:
                for edge, rows in ROWS.items():
                    if edge != "long" or dtype == "bf16":
                        yield self._case(rows, 2, 48, 32, 16, "fp8", numerics, dtype, edge=edge)
                for values in ("large", "ties", "zeros", "nan_row"):
                    yield self._case(5, 2, 48, 32, 16, "fp8", numerics, dtype, values=values)
                yield self._case(5, 1, 32, 64, 32, "fp8", numerics, dtype, edge="width")
            for kind in ("bf16", "fp32"):
                yield self._case(9, 2, 48, 32, 16, kind, numerics, "bf16", edge="kind")
            yield self._case(17, 4, 64, 96, 16, "fp8", numerics, "bf16", edge="golden")
        if tier.includes(Tier.FULL):
            more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL, "hidden": 5120}
            yield self._case(3, 64, 512, 1280, 64, "fp8", "infer", "bf16", **more)

    def _case(
        self,
        rows: int,
        heads: int,
        head_dim: int,
        rank: int,
        channels: int,
        kind: str,
        numerics: str,
        dtype: str,
        hidden: int = 128,
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "heads": heads,
            "head_dim": head_dim,
            "rank": rank,
            "hidden": hidden,
            "rotated": channels,
            "weight": kind,
        }
        return Case.of("project", facts, dtype=dtype, numerics=numerics, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, heads, head_dim = (case.size(name) for name in ("rows", "heads", "head_dim"))
        rank, hidden, kind = case.size("rank"), case.size("hidden"), str(case.fact("weight"))

        def weight(outputs: int, inputs: int) -> LinearSource:
            return matrix(outputs, inputs, kind, generator)

        weights = AttentionWeights(
            wq_a=weight(rank, hidden),  # type: ignore[arg-type]
            q_norm=norm_weight(rank, generator),
            wq_b=weight(heads * head_dim, rank),  # type: ignore[arg-type]
            wkv=weight(head_dim, hidden),  # type: ignore[arg-type]
            kv_norm=norm_weight(head_dim, generator),
            frequencies=frequencies(160000.0, case.size("rotated")),
            num_heads=heads,
            head_dim=head_dim,
            eps=EPS,
        )
        x = make(case.values, (rows, hidden), generator, COMPUTE_DTYPES[case.dtype])
        return {
            "a": activation(x, scheme_of(case)),
            "weights": weights,
            "positions": positions(rows, generator),
            "numerics": numerics_of(case),
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        """Of the latent, the quantised half if it has one: that is what is read of it."""
        return {"queries": result.queries, "latent": read(result.latent), "window": result.window}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if case.numerics == "infer" and output != "window":
            return BF16_QUANTISED
        return BF16_CHAIN if case.dtype == "bf16" else float_tolerance(case.dtype)

    def wide(self, case: Case, arguments: Arguments) -> Arguments:
        """Frequencies stay float32, and inputs keep their quantised half."""
        wide = super().wide(case, arguments)
        weights = wide["weights"]
        kept = arguments["weights"].frequencies
        return {**wide, "weights": replace(weights, frequencies=kept)}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        a, weights, where = arguments["a"], arguments["weights"], arguments["positions"]
        dtype, turn = a.dtype, weights.frequencies
        latent = norm(product(a, weights.wq_a, dtype), weights.q_norm, weights.eps)
        scaled = block_scaled(latent, scheme_of(case))
        queries = product(scaled, weights.wq_b, dtype)
        queries = queries.reshape(len(queries), weights.num_heads, weights.head_dim)
        window = norm(product(a, weights.wkv, dtype), weights.kv_norm, weights.eps)
        if scaled.quantised is not None:
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            latent = consumed(scaled, "fp8").to(wide)
        return {
            "queries": rotated(queries, where, turn, False),
            "latent": latent,
            "window": rotated(window, where, turn, False),
        }


class Logits(OperatorSuite):
    """`logits`: the final norm and the head, whose weights are not rounded."""

    operator = "logits"
    row_arguments = ("x",)
    nan_argument = "x"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for dtype in COMPUTE_DTYPES:
            for kind in ("bf16", "fp32"):
                for edge, rows in FEW_ROWS.items():
                    yield self._case(rows, 64, 48, kind, dtype, edge=edge)
                for values in ("large", "extreme", "zeros", "nan_row"):
                    yield self._case(5, 64, 33, kind, dtype, values=values)
            yield self._case(3, 128, 640, "bf16", dtype, edge="golden")
            yield self._case(2, 37, 1, "fp32", dtype, edge="ragged")
        if tier.includes(Tier.FULL):
            more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL}
            yield self._case(2, 5120, 8192, "bf16", "bf16", **more)

    def _case(
        self, rows: int, hidden: int, vocabulary: int, kind: str, dtype: str, **more: Any
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "hidden": hidden,
            "vocabulary": vocabulary,
            "weight": kind,
        }
        return Case.of("logits", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        hidden, kind = case.size("hidden"), str(case.fact("weight"))
        return {
            "x": make(
                case.values, (case.size("rows"), hidden), generator, COMPUTE_DTYPES[case.dtype]
            ),
            "norm": norm_weight(hidden, generator),
            "eps": EPS,
            "head": matrix(case.size("vocabulary"), hidden, kind, generator),
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return BF16_CHAIN if case.dtype == "bf16" else float_tolerance(case.dtype)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        hidden = norm(arguments["x"], arguments["norm"], arguments["eps"])
        out = torch.float64 if case.dtype == "fp64" else torch.float32
        return {"out": product(block_scaled(hidden, None), arguments["head"], out)}


DENSE_STEPS: tuple[OperatorSuite, ...] = (Project(), Logits())
