"""Cases of the packing operators, tested through operators that read packed weights.

A matrix is read by multiplying it with unit rows, a table by gathering all of its rows. However the
weights are packed, every stored value must come back exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from deepinfer.backend import Activation, Contract, Fact
from deepinfer.backend.memory_source import MemorySource
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.matrices import lookup_table, matrix
from deepinfer.conformance.oracles.stored import stored_matrix
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.conformance.values import make
from deepinfer.conformance.world import TableSource
from deepinfer.formats.dtypes import COMPUTE_DTYPES

KINDS = ("fp8", "fp4", "bf16", "fp32")


class PackLinear(OperatorSuite):
    """`pack_linear`: every stored value of a matrix, read by unit rows."""

    operator = "pack_linear"
    stated = ("weight",)

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in KINDS:
            for rows, columns in ((1, 32), (31, 64), (32, 96), (33, 160), (300, 32)):
                yield self._case(rows, columns, kind, "fp32", edge="tile")
            for dtype in ("bf16", "fp64"):
                yield self._case(33, 64, kind, dtype)
            for values in ("powers", "saturated", "zeros"):
                yield self._case(40, 64, kind, "fp32", values=values)
            if kind != "fp4":
                for columns in (1, 17, 33, 70):
                    yield self._case(35, columns, kind, "fp32", edge="ragged")
        if tier.includes(Tier.FULL):
            for kind in KINDS:
                yield self._case(1280, 512, kind, "fp32", edge="released", tier=Tier.FULL)

    def _case(self, outputs: int, inputs: int, kind: str, dtype: str, **more: Any) -> Case:
        facts: dict[str, Fact] = {
            "rows": inputs,
            "inputs": inputs,
            "outputs": outputs,
            "weight": kind,
        }
        return Case.of("pack_linear", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        inputs, kind = case.size("inputs"), str(case.fact("weight"))
        return {
            "unit": torch.eye(inputs, dtype=COMPUTE_DTYPES[case.dtype]),
            "w": matrix(case.size("outputs"), inputs, kind, generator, case.values),
        }

    def run(self, operators: Contract, arguments: Arguments) -> Any:
        """Pack the matrix and multiply it with unit rows."""
        unit, packed = arguments["unit"], arguments["w"]
        out = torch.float64 if unit.dtype == torch.float64 else torch.float32
        return packed, operators.linear(Activation(unit), packed, out)

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        packed, read = result
        named = (*packed.shape, KINDS.index(packed.kind))
        return {"out": read, "shape and kind": torch.tensor(named)}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        source = arguments["w"]
        out = torch.float64 if case.dtype == "fp64" else torch.float32
        named = (*source.shape, KINDS.index(source.kind))
        return {"out": stored_matrix(source).T.to(out), "shape and kind": torch.tensor(named)}


class PackTable(OperatorSuite):
    """`pack_table`: every row of a table."""

    operator = "pack_table"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in ("fp8", "bf16", "fp32"):
            for vocabulary, width in ((1, 32), (31, 64), (33, 128), (257, 32)):
                for dtype in ("bf16", "fp32"):
                    yield self._case(vocabulary, width, kind, dtype, edge="tile")

    def _case(self, vocabulary: int, width: int, kind: str, dtype: str, **more: Any) -> Case:
        facts: dict[str, Fact] = {
            "rows": vocabulary,
            "vocabulary": vocabulary,
            "width": width,
            "weight": kind,
        }
        return Case.of("pack_table", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        vocabulary, width = case.size("vocabulary"), case.size("width")
        source = lookup_table(vocabulary, width, str(case.fact("weight")), generator, case.values)
        return {
            "table": TableSource(source),
            "rows": torch.arange(vocabulary).flip(0),
            "dtype": COMPUTE_DTYPES[case.dtype],
        }

    def run(self, operators: Contract, arguments: Arguments) -> Any:
        """Pack the table and gather all of its rows."""
        packed, rows, dtype = arguments["table"], arguments["rows"], arguments["dtype"]
        if packed.kind == "fp8":
            return packed, operators.gather(packed, rows[:, None], dtype).values
        return packed, operators.embed(packed, rows, dtype)

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        packed, read = result
        named = (*packed.shape, KINDS.index(packed.kind))
        return {"out": read, "shape and kind": torch.tensor(named)}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        source = arguments["table"].source
        out = stored_matrix(source, per_row=True).flip(0).to(COMPUTE_DTYPES[case.dtype])
        named = (*source.shape, KINDS.index(source.kind))
        return {"out": out, "shape and kind": torch.tensor(named)}


class PackVector(OperatorSuite):
    """`pack_vector`: small tensors, exactly as they are stored."""

    operator = "pack_vector"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for dtype in ("bf16", "fp32"):
            for shape in (1, 3, 64, 1280, "24x512"):
                yield Case.of("pack_vector", {"shape": shape}, dtype=dtype)
            for values in ("large", "subnormal", "zeros"):
                yield Case.of("pack_vector", {"shape": 64}, dtype=dtype, values=values)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        shape = tuple(int(part) for part in str(case.fact("shape")).split("x"))
        return {
            "source": MemorySource(make(case.values, shape, generator, COMPUTE_DTYPES[case.dtype]))
        }

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": arguments["source"].read()}


PACKING: tuple[OperatorSuite, ...] = (PackLinear(), PackTable(), PackVector())
