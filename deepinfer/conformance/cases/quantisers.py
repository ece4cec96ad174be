"""Cases of `quantise` and `norm_quantise`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from deepinfer.backend import Fact
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.specs import (
    EPS,
    ROWS,
    inconsistent,
    read,
    scheme_number,
    scheme_of,
)
from deepinfer.conformance.oracles.blocks import quantised
from deepinfer.conformance.oracles.rows import norm
from deepinfer.conformance.oracles.stored import E2M1
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.conformance.tolerances import BF16_QUANTISED, EXACT, Tolerance, float_tolerance
from deepinfer.conformance.values import make
from deepinfer.formats import Scheme
from deepinfer.formats.dtypes import COMPUTE_DTYPES

VALUES = ("large", "extreme", "saturated", "subnormal", "ties", "zeros", "nan_row", "infinite")


def midpoints(shape: tuple[int, ...], scheme: Scheme, generator: torch.Generator) -> torch.Tensor:
    """Values of both signs halfway between two elements of a format, in groups with exact scales.

    Each group has the largest element times its scale, which is a power of two, or in NVFP4 a
    number of 4 bits times one.
    """
    bytes_ = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    grid = bytes_ if scheme is Scheme.FP8_BLOCK32 else torch.tensor(E2M1)
    halfway = (grid[1:] + grid[:-1]) / 2
    drawn = torch.randint(0, len(halfway), shape, generator=generator)
    size = scheme.group_size
    x: torch.Tensor = halfway[drawn].reshape(*shape[:-1], shape[-1] // size, size)
    x[..., 0] = grid[-1]
    groups = x.shape[:-1]
    scale = torch.ldexp(torch.ones(groups), torch.randint(-4, 5, groups, generator=generator))
    if scheme is Scheme.NVFP4:
        scale = scale * torch.randint(8, 16, groups, generator=generator) / 8
    sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    return (x * scale[..., None] * sign).flatten(-2)


class Quantise(OperatorSuite):
    """`quantise`: codes and scales of groups of channels, equal to the byte."""

    operator = "quantise"
    row_arguments = ("x",)
    row_outputs = ("values", "quantised.codes", "quantised.scales")
    nan_argument = "x"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for scheme in Scheme:
            for dtype in COMPUTE_DTYPES:
                yield self._case(40, 64, scheme.value, dtype, edge="midpoints")
                for edge, rows in ROWS.items():
                    yield self._case(rows, 64, scheme.value, dtype, edge=edge)
                for values in VALUES:
                    yield self._case(7, 96, scheme.value, dtype, values=values)
                yield self._case(5, scheme.group_size, scheme.value, dtype, edge="group")
                yield self._case(3, 1280, scheme.value, dtype, edge="width")
            yield self._case(3, 64, scheme.value, "bf16", heads=4, edge="heads")
            yield self._case(17, 128, scheme.value, "bf16", heads=32, edge="heads")
            for seed in range(1, 4):
                yield self._case(40, 128, scheme.value, "fp32", values="ties", seed=seed)
        for dtype in COMPUTE_DTYPES:
            yield self._case(5, 37, None, dtype, edge="none")
        for width, heads in ((4096, 8), (8192, 0), (5120, 0), (2304, 0)):
            yield self._case(3, width, Scheme.FP8_BLOCK32.value, "bf16", heads, edge="released")
        if tier.includes(Tier.FULL):
            for scheme in Scheme:
                for seed in range(1, 5):
                    more: dict[str, Any] = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                    yield self._case(257, 5120, scheme.value, "bf16", **more)

    def _case(
        self, rows: int, width: int, scheme: str | None, dtype: str, heads: int = 0, **more: Any
    ) -> Case:
        facts: dict[str, Fact] = {"rows": rows, "width": width, "scheme": scheme}
        if heads:
            facts["heads"] = heads
        return Case.of("quantise", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        heads = dict(case.facts).get("heads")
        middle = (heads,) if isinstance(heads, int) else ()
        shape = case.size("rows"), *middle, case.size("width")
        x = make(case.values, shape, generator, COMPUTE_DTYPES[case.dtype])
        scheme = scheme_of(case)
        if case.edge == "midpoints" and scheme is not None:
            x = midpoints(shape, scheme, generator).to(x.dtype)
        return {"x": x, "scheme": scheme}

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {**super().outputs(case, result, arguments), "scheme": scheme_number(result)}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs | None:
        if arguments["scheme"] is None:
            return {"values": arguments["x"]}
        codes, scales = quantised(arguments["x"], arguments["scheme"])
        return {"quantised.codes": codes, "quantised.scales": scales}


class NormQuantise(OperatorSuite):
    """`norm_quantise`: the rounded norm, and the bytes of its quantised half."""

    operator = "norm_quantise"
    row_arguments = ("x",)
    row_outputs = ("values", "read", "inconsistent")
    nan_argument = "x"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for scheme in (None, Scheme.FP8_BLOCK32.value):
            for dtype in COMPUTE_DTYPES:
                for edge, rows in ROWS.items():
                    yield self._case(rows, 96, scheme, dtype, edge=edge)
                for values in ("large", "extreme", "subnormal", "ties", "zeros", "nan_row"):
                    yield self._case(5, 64, scheme, dtype, values=values)
                for width in (32, 128, 1280, 5120):
                    yield self._case(3, width, scheme, dtype, edge="width")
        if tier.includes(Tier.FULL):
            for seed in range(1, 5):
                more: dict[str, Any] = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                yield self._case(129, 5120, Scheme.FP8_BLOCK32.value, "bf16", **more)

    def _case(self, rows: int, width: int, scheme: str | None, dtype: str, **more: Any) -> Case:
        facts: dict[str, Fact] = {"rows": rows, "width": width, "scheme": scheme}
        return Case.of("norm_quantise", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        width = case.size("width")
        return {
            "x": make(
                case.values, (case.size("rows"), width), generator, COMPUTE_DTYPES[case.dtype]
            ),
            "weight": 1 + 0.1 * torch.randn(width, generator=generator),
            "eps": EPS,
            "scheme": scheme_of(case),
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {
            "values": result.values,
            "read": read(result),
            "inconsistent": inconsistent(result),
            "scheme": scheme_number(result),
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if output == "values":
            return float_tolerance(case.dtype, elementwise=True)
        return BF16_QUANTISED if output == "read" else EXACT

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"values": norm(arguments["x"], arguments["weight"], arguments["eps"])}


QUANTISERS: tuple[OperatorSuite, ...] = (Quantise(), NormQuantise())
