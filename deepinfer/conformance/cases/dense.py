"""Cases of the dense family: matmuls, norms, rotations, quantisers, tables."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from deepinfer.backend import Activation, CallSpec, Fact, LinearSource
from deepinfer.backend.memory_source import MemorySource
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.matrices import matrix, table
from deepinfer.conformance.suite import (
    DTYPES,
    Arguments,
    Invalid,
    OperatorSuite,
    Outputs,
    generator_of,
)
from deepinfer.conformance.tolerances import EXACT, Tolerance, float_tolerance
from deepinfer.conformance.values import make
from deepinfer.conformance.world import TableSource
from deepinfer.formats import Scheme, quantise

ROWS = {"empty": 0, "one": 1, "tile-1": 15, "tile": 16, "tile+1": 17, "long": 130}


def activation(x: torch.Tensor, scheme: str | None) -> Activation:
    """Values with their quantised half."""
    if scheme is None:
        return Activation(x)
    return Activation(x, quantise(x, Scheme(scheme)), Scheme(scheme))


class RmsNorm(OperatorSuite):
    """x / sqrt(mean(x^2) + eps) * weight."""

    operator = "rms_norm"
    row_arguments = ("x",)
    nan_argument = "x"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for dtype in DTYPES:
            for edge, rows in ROWS.items():
                yield self._case(rows, 64, dtype, edge=edge)
            for values in ("large", "extreme", "subnormal", "zeros", "nan_row"):
                yield self._case(5, 64, dtype, values=values)
            for width in (3, 37, 512, 1536, 5120):
                yield self._case(3, width, dtype, edge="width")
        if tier.includes(Tier.FULL):
            for seed in range(1, 5):
                yield self._case(257, 5120, "bf16", edge="released", seed=seed, tier=Tier.FULL)

    def _case(self, rows: int, width: int, dtype: str, **more: object) -> Case:
        return Case.of("rms_norm", {"rows": rows, "width": width}, dtype=dtype, **more)  # type: ignore[arg-type]

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        dtype, width = DTYPES[case.dtype], case.size("width")
        return {
            "x": make(case.values, (case.size("rows"), width), generator, dtype),
            "weight": 1 + 0.1 * torch.randn(width, generator=generator),
            "eps": 1e-6,
        }

    def calls(self, case: Case) -> list[CallSpec]:
        facts: dict[str, Fact] = {
            "dtype": case.dtype,
            "width": case.size("width"),
            "eps": 1e-6,
        }
        rows = max(1, case.size("rows"))
        return [CallSpec.of("rms_norm", facts, {"rows": (rows, rows)})]

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance(case.dtype, elementwise=True)


class Linear(OperatorSuite):
    """a times w^T, every stored kind."""

    operator = "linear"
    row_arguments = ("a",)
    nan_argument = "a.values"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in ("fp8", "fp4", "bf16", "fp32"):
            for dtype in DTYPES:
                for edge, rows in ROWS.items():
                    yield self._case(rows, 64, 48, kind, dtype, edge=edge)
                for values in ("large", "ties", "zeros", "saturated"):
                    yield self._case(5, 96, 32, kind, dtype, values=values)
                yield self._case(3, 1024, 20, kind, dtype, edge="deep")
        if tier.includes(Tier.FULL):
            for kind, inputs, outputs in (
                ("fp8", 5120, 1536),
                ("fp8", 1536, 4096),
                ("bf16", 5120, 512),
                ("fp4", 5120, 2048),
            ):
                yield self._case(17, inputs, outputs, kind, "bf16", edge="released", tier=Tier.FULL)

    def _case(
        self, rows: int, inputs: int, outputs: int, kind: str, dtype: str, **more: object
    ) -> Case:
        facts = {
            "rows": rows,
            "inputs": inputs,
            "outputs": outputs,
            "weight": kind,
            "out": dtype,
            "scheme": Scheme.FP8_BLOCK32.value if kind in ("fp8", "fp4") else None,
        }
        return Case.of("linear", facts, dtype=dtype, **more)  # type: ignore[arg-type]

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        shape = case.size("rows"), case.size("inputs")
        x = make(case.values, shape, generator, DTYPES[case.dtype])
        scheme = case.fact("scheme")
        weights = "powers" if case.values == "large" else "normal"
        return {
            "a": activation(x, None if scheme is None else str(scheme)),
            "w": matrix(
                case.size("outputs"), shape[1], str(case.fact("weight")), generator, weights
            ),
            "out_dtype": DTYPES[str(case.fact("out"))],
        }

    def calls(self, case: Case) -> list[CallSpec]:
        facts = {name: value for name, value in case.facts if name != "rows"}
        rows = max(1, case.size("rows"))
        return [CallSpec.of("linear", {"dtype": case.dtype, **facts}, {"rows": (rows, rows)})]

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance(str(case.fact("out")))

    def wide(self, case: Case, arguments: Arguments) -> Arguments:
        """A stored fp32 weight is rounded to bf16 where the output is bf16, in any precision."""
        wide = super().wide(case, arguments)
        if case.fact("weight") == "fp32" and case.fact("out") == "bf16":
            stored = arguments["w"].weight.read()
            wide["w"] = LinearSource(MemorySource(stored.bfloat16()))
        return wide


class Embed(OperatorSuite):
    """Rows of a table, exactly; ids never wrap."""

    operator = "embed"
    row_arguments = ("ids",)

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in ("bf16", "fp32"):
            for dtype in DTYPES:
                for edge, rows in ROWS.items():
                    facts = {"rows": rows, "vocabulary": 61, "width": 24, "kind": kind}
                    yield Case.of("embed", facts, dtype=dtype, edge=edge)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, vocabulary = case.size("rows"), case.size("vocabulary")
        ids = torch.randint(0, vocabulary, (rows,), generator=generator)
        if rows > 1:
            ids[0], ids[-1] = 0, vocabulary - 1
        return {
            "table": TableSource(
                table(vocabulary, case.size("width"), str(case.fact("kind")), generator)
            ),
            "ids": ids,
            "dtype": DTYPES[case.dtype],
        }

    def calls(self, case: Case) -> list[CallSpec]:
        facts = {name: case.size(name) for name in ("vocabulary", "width")}
        rows = max(1, case.size("rows"))
        return [CallSpec.of("embed", {"dtype": case.dtype, **facts}, {"rows": (rows, rows)})]

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


DENSE: tuple[OperatorSuite, ...] = (RmsNorm(), Linear(), Embed())
