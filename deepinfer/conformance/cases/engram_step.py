"""Cases of the step `engram`: hash, look up, project, inject."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from deepinfer.backend import Activation, CallSpec, EngramWeights, Fact
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.engram import gate_weight, heads_of, histories, ngram_hash
from deepinfer.conformance.cases.matrices import lookup_table, matrix
from deepinfer.conformance.cases.specs import EPS, ROWS
from deepinfer.conformance.oracles.engram import hashed, injected
from deepinfer.conformance.oracles.rows import product
from deepinfer.conformance.oracles.stored import stored_matrix
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.conformance.tolerances import GATED, TWICE_ROUNDED, Tolerance, float_tolerance
from deepinfer.conformance.values import make
from deepinfer.conformance.world import TableSource
from deepinfer.formats.dtypes import COMPUTE_DTYPES

IDS = 518


class EngramStep(OperatorSuite):
    """`engram`: the whole n-gram memory of a layer."""

    operator = "engram"
    row_arguments = ("streams", "history", "blocked")
    nan_argument = "streams"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in ("fp8", "bf16"):
            for dtype in COMPUTE_DTYPES:
                for edge, rows in ROWS.items():
                    if edge != "long" or kind == "fp8":
                        yield self._case(rows, 4, 32, 32, kind, dtype, edge=edge)
                for values in ("large", "zeros", "nan_row"):
                    yield self._case(9, 4, 32, 32, kind, dtype, values=values)
                yield self._case(9, 2, 64, 64, kind, dtype, orders=3, heads=2, edge="orders")
                yield self._case(9, 1, 32, 32, kind, dtype, orders=2, heads=1, edge="orders")
            yield self._case(17, 4, 128, 64, kind, "bf16", modulus=300, edge="golden")
        if tier.includes(Tier.FULL):
            more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL}
            yield self._case(9, 4, 1024, 256, "fp8", "bf16", heads=8, modulus=400, **more)

    def _case(
        self,
        rows: int,
        streams: int,
        width: int,
        table_width: int,
        kind: str,
        dtype: str,
        orders: int = 4,
        heads: int = 4,
        modulus: int = 40,
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "streams": streams,
            "width": width,
            "table_width": table_width,
            "weight": kind,
            "orders": orders,
            "heads": heads,
            "modulus": modulus,
        }
        return Case.of("engram", facts, dtype=dtype, **more)

    def facts_of(self, case: Case, call: CallSpec) -> dict[str, Fact]:
        heads = heads_of(call, case.fact("orders"))
        return {**super().facts_of(case, call), "heads": heads}

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, count, width = (case.size(name) for name in ("rows", "streams", "width"))
        orders, heads, table_width = (
            case.size(name) for name in ("orders", "heads", "table_width")
        )
        kind = str(case.fact("weight"))
        hash = ngram_hash(orders, heads, case.size("modulus"), IDS, generator)
        columns = len(hash.primes)
        weights = EngramWeights(
            table=TableSource(lookup_table(int(hash.primes.sum()), table_width, kind, generator)),  # type: ignore[arg-type]
            hash=hash,
            wkv=matrix((count + 1) * width, columns * table_width, kind, generator),  # type: ignore[arg-type]
            q_weight=gate_weight(count, width, generator),
            k_weight=gate_weight(count, width, generator),
            eps=EPS,
        )
        history = histories(rows, orders, IDS, generator)
        return {
            "streams": make(
                case.values, (rows, count, width), generator, COMPUTE_DTYPES[case.dtype]
            ),
            "history": history,
            "weights": weights,
            "blocked": history[:, 0] < 0,
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if case.dtype == "bf16":
            return TWICE_ROUNDED
        return GATED if case.dtype == "fp32" else float_tolerance("fp64")

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        streams, weights = arguments["streams"], arguments["weights"]
        rows = hashed(arguments["history"], weights.hash)
        entries = stored_matrix(weights.table.source, per_row=True)[rows].flatten(1)
        memory = product(Activation(entries), weights.wkv, streams.dtype)
        own = (weights.q_weight, weights.k_weight, weights.eps, arguments["blocked"])
        return {"out": injected(streams, memory, *own)}


ENGRAM_STEP: tuple[OperatorSuite, ...] = (EngramStep(),)
