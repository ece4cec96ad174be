"""Cases of `rms_norm`, `linear`, `grouped_linear` and `embed`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from deepinfer.backend import Fact, LinearSource
from deepinfer.backend.memory_source import MemorySource
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.matrices import lookup_table, matrix
from deepinfer.conformance.cases.specs import (
    EPS,
    FEW_ROWS,
    FP8,
    ROWS,
    activation,
    scheme_of,
)
from deepinfer.conformance.oracles.rows import grouped_product, norm, product
from deepinfer.conformance.suite import (
    Arguments,
    Invalid,
    OperatorSuite,
    Outputs,
    generator_of,
)
from deepinfer.conformance.tolerances import EXACT, Tolerance, float_tolerance
from deepinfer.conformance.values import make
from deepinfer.conformance.world import TableSource
from deepinfer.formats.dtypes import COMPUTE_DTYPES

KINDS = ("fp8", "fp4", "bf16", "fp32")


class RmsNorm(OperatorSuite):
    """`rms_norm`: x / sqrt(mean(x^2) + eps) * weight."""

    operator = "rms_norm"
    row_arguments = ("x",)
    nan_argument = "x"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for dtype in COMPUTE_DTYPES:
            for edge, rows in ROWS.items():
                yield self._case(rows, 64, dtype, edge=edge)
            for values in ("large", "extreme", "subnormal", "zeros", "nan_row"):
                yield self._case(5, 64, dtype, values=values)
            yield self._case(5, 64, dtype, eps=1e-6, values="extreme", edge="eps")
            for width in (3, 37, 512, 1536, 5120):
                yield self._case(3, width, dtype, edge="width")
        if tier.includes(Tier.FULL):
            for seed in range(1, 5):
                yield self._case(257, 5120, "bf16", edge="released", seed=seed, tier=Tier.FULL)

    def _case(self, rows: int, width: int, dtype: str, eps: float = EPS, **more: Any) -> Case:
        return Case.of("rms_norm", {"rows": rows, "width": width, "eps": eps}, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        dtype, width = COMPUTE_DTYPES[case.dtype], case.size("width")
        return {
            "x": make(case.values, (case.size("rows"), width), generator, dtype),
            "weight": 1 + 0.1 * torch.randn(width, generator=generator),
            "eps": case.fact("eps"),
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance(case.dtype, elementwise=True)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": norm(arguments["x"], arguments["weight"], arguments["eps"])}


class Linear(OperatorSuite):
    """`linear`: a times w^T, for every stored kind of w."""

    operator = "linear"
    stated = ("weight",)
    row_arguments = ("a",)
    nan_argument = "a.values"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in KINDS:
            yield self._case(5, 64, 1, kind, "bf16", edge="column")
            yield self._case(5, 128, 384, kind, "bf16", out="fp32", edge="wider")
        for kind in ("fp8", "fp4"):
            for dtype in ("bf16", "fp32"):
                yield self._case(17, 64, 48, kind, dtype, scheme=None, edge="values")
        for kind in ("bf16", "fp32"):
            for dtype in ("bf16", "fp32"):
                yield self._case(17, 64, 48, kind, dtype, edge="both")
            for inputs in (1, 24, 37):
                yield self._case(17, inputs, 33, kind, "bf16", edge="ragged")
        for kind in reversed(KINDS):
            for dtype in COMPUTE_DTYPES:
                yield self._case(3, 1024, 20, kind, dtype, edge="deep")
                for edge, rows in ROWS.items():
                    yield self._case(rows, 64, 48, kind, dtype, edge=edge)
                for values in ("large", "ties", "zeros", "saturated", "extreme", "nan_row"):
                    yield self._case(5, 96, 32, kind, dtype, values=values)
        if tier.includes(Tier.FULL):
            for kind, inputs, outputs in (
                ("fp8", 5120, 1280),
                ("fp8", 1280, 4096),
                ("fp8", 8192, 512),
                ("fp8", 6144, 1024),
                ("bf16", 5120, 512),
                ("bf16", 512, 128),
                ("fp4", 5120, 2304),
                ("fp4", 2304, 1024),
            ):
                yield self._case(17, inputs, outputs, kind, "bf16", edge="released", tier=Tier.FULL)

    def _case(
        self,
        rows: int,
        inputs: int,
        outputs: int,
        kind: str,
        dtype: str,
        out: str | None = None,
        scheme: str | None = FP8,
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "inputs": inputs,
            "outputs": outputs,
            "weight": kind,
            "out": out or dtype,
            "scheme": scheme if kind in ("fp8", "fp4") else None,
        }
        return Case.of(self.operator, facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        shape = case.size("rows"), case.size("inputs")
        x = make(case.values, shape, generator, COMPUTE_DTYPES[case.dtype])
        kind, weights = str(case.fact("weight")), _weights_for(case)
        half = FP8 if case.edge == "both" else scheme_of(case)  # one that the weight does not read
        return {
            "a": activation(x, half),
            "w": matrix(case.size("outputs"), shape[1], kind, generator, weights),
            "out_dtype": COMPUTE_DTYPES[str(case.fact("out"))],
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance(str(case.fact("out")))

    def wide(self, case: Case, arguments: Arguments) -> Arguments:
        """A stored float32 weight is rounded to bf16 for a bf16 output, in this comparison too."""
        wide = super().wide(case, arguments)
        if case.fact("weight") == "fp32" and case.fact("out") == "bf16":
            stored = arguments["w"].weight.read()
            wide["w"] = LinearSource(MemorySource(stored.bfloat16()))
        return wide

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": product(arguments["a"], arguments["w"], arguments["out_dtype"])}


class GroupedLinear(Linear):
    """`grouped_linear`: the block-diagonal product of the attention output."""

    operator = "grouped_linear"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in KINDS:
            for dtype in COMPUTE_DTYPES:
                for edge, rows in FEW_ROWS.items():
                    yield self._grouped(rows, 2, 64, 32, kind, dtype, edge=edge)
                for values in ("large", "ties", "saturated", "zeros", "nan_row"):
                    yield self._grouped(5, 3, 32, 32, kind, dtype, values=values)
            yield self._grouped(5, 8, 32, 16, kind, "bf16", edge="groups")
            yield self._grouped(5, 1, 64, 48, kind, "bf16", edge="groups")
            yield self._grouped(3, 2, 256, 33, kind, "bf16", edge="ragged")
        yield self._grouped(17, 2, 64, 32, "fp8", "bf16", scheme=None, edge="values")
        if tier.includes(Tier.FULL):
            more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL}
            yield self._grouped(17, 8, 4096, 1024, "fp8", "bf16", **more)

    def _grouped(
        self, rows: int, groups: int, inputs: int, outputs: int, kind: str, dtype: str, **more: Any
    ) -> Case:
        case = self._case(rows, inputs, outputs, kind, dtype, **more)
        return replace(case, facts=tuple(sorted((*case.facts, ("groups", groups)))))

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        groups, inputs = case.size("groups"), case.size("inputs")
        x = make(
            case.values, (case.size("rows"), groups, inputs), generator, COMPUTE_DTYPES[case.dtype]
        )
        kind, weights = str(case.fact("weight")), _weights_for(case)
        return {
            "a": activation(x, scheme_of(case)),
            "w": matrix(groups * case.size("outputs"), inputs, kind, generator, weights),
            "out_dtype": COMPUTE_DTYPES[str(case.fact("out"))],
        }

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": grouped_product(arguments["a"], arguments["w"], arguments["out_dtype"])}


def _weights_for(case: Case) -> str:
    return "powers" if case.values == "large" else "normal"


class Embed(OperatorSuite):
    """`embed`: exact rows of a table; negative ids do not wrap."""

    operator = "embed"
    row_arguments = ("ids",)

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in ("bf16", "fp32"):
            for dtype in COMPUTE_DTYPES:
                for edge, rows in ROWS.items():
                    facts = {"rows": rows, "vocabulary": 61, "width": 24, "kind": kind}
                    yield Case.of("embed", facts, dtype=dtype, edge=edge)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, vocabulary = case.size("rows"), case.size("vocabulary")
        ids = torch.randint(0, vocabulary, (rows,), generator=generator)
        if rows > 1:
            ids[0], ids[-1] = 0, vocabulary - 1
        if rows > 2:
            ids[1] = ids[-1]
        return {
            "table": TableSource(
                lookup_table(vocabulary, case.size("width"), str(case.fact("kind")), generator)
            ),
            "ids": ids,
            "dtype": COMPUTE_DTYPES[case.dtype],
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return EXACT

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        stored = arguments["table"].source.weight.read()
        rows = [stored[i] for i in arguments["ids"].tolist()]
        out = torch.stack(rows) if rows else stored[:0]
        return {"out": out.to(arguments["dtype"])}

    def invalid(self) -> Iterator[Invalid]:
        case = Case.of("embed", {"rows": 3, "vocabulary": 61, "width": 24, "kind": "bf16"})
        for wrong in (-1, 61, 2**40):
            arguments = self.inputs(case, generator_of(case))
            arguments["ids"] = torch.tensor([0, wrong, 1])
            facts = {**dict(case.facts), "id": wrong}
            yield Invalid(Case.of("embed", facts, edge="invalid"), arguments, IndexError)


DENSE: tuple[OperatorSuite, ...] = (RmsNorm(), Linear(), GroupedLinear(), Embed())
