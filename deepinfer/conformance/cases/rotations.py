"""Cases of `rope`, which rotates adjacent pairs of the last channels by float32 angles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Fact
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.specs import FEW_ROWS, ROWS
from deepinfer.conformance.oracles.rows import rotated
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs, numerics_of
from deepinfer.conformance.tolerances import Tolerance, float_tolerance
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES

LAST_POSITION = (1 << 20) - 1
YARN_FACTOR = 16.0


def frequencies(theta: float, channels: int) -> Tensor:
    """Inverse frequencies [channels / 2]; with a theta above 10000 there is a ramp like YaRN's."""
    exponents = torch.arange(0, channels, 2, dtype=torch.float64) / channels
    plain = torch.tensor(theta, dtype=torch.float64) ** -exponents
    if theta > 10000:
        ramp = torch.linspace(-0.9, 1.6, channels // 2, dtype=torch.float64).clamp(0, 1)
        plain = plain / YARN_FACTOR * ramp + plain * (1 - ramp)
    return plain.float()


def positions(rows: int, generator: torch.Generator, edge: str = "") -> Tensor:
    """Positions of rows in no order, among them the first, the last possible and equal ones."""
    found = torch.randint(0, LAST_POSITION, (rows,), generator=generator)
    if edge == "near":
        return found % 512
    found[: rows // 2] %= 300
    if rows > 3:
        found[0], found[1], found[2], found[-1] = 0, LAST_POSITION, 1, LAST_POSITION
    return found


class Rope(OperatorSuite):
    """`rope`: rotation forwards and backwards, in both numeric modes."""

    operator = "rope"
    row_arguments = ("x", "positions")
    nan_argument = "x"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for numerics in ("ref", "infer"):
            for dtype in COMPUTE_DTYPES:
                for inverse in (False, True):
                    edges = FEW_ROWS if inverse else ROWS
                    for edge, rows in edges.items():
                        yield self._case(rows, 2, 48, 16, inverse, numerics, dtype, edge=edge)
                for values in ("large", "extreme", "zeros", "nan_row"):
                    yield self._case(5, 3, 40, 8, False, numerics, dtype, values=values)
                for width, rotated_ in ((64, 64), (2, 2), (66, 2), (512, 64), (128, 64)):
                    yield self._case(5, 1, width, rotated_, True, numerics, dtype, edge="width")
                yield self._case(9, 4, 64, 16, False, numerics, dtype, theta=10000.0, edge="plain")
            for heads, width in ((64, 512), (32, 128)):
                yield self._case(3, heads, width, 64, False, numerics, "bf16", edge="released")
        if tier.includes(Tier.FULL):
            for seed in range(1, 4):
                for inverse in (False, True):
                    more: dict[str, Any] = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                    yield self._case(65, 64, 512, 64, inverse, "infer", "bf16", **more)

    def _case(
        self,
        rows: int,
        heads: int,
        width: int,
        channels: int,
        inverse: bool,
        numerics: str,
        dtype: str,
        theta: float = 160000.0,
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "heads": heads,
            "width": width,
            "rotated": channels,
            "inverse": inverse,
            "theta": theta,
        }
        return Case.of("rope", facts, dtype=dtype, numerics=numerics, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, heads, width = (case.size(name) for name in ("rows", "heads", "width"))
        shape = (rows, heads, width) if heads > 1 else (rows, width)
        theta = case.fact("theta")
        assert isinstance(theta, float)
        return {
            "x": make(case.values, shape, generator, COMPUTE_DTYPES[case.dtype]),
            "positions": positions(rows, generator),
            "frequencies": frequencies(theta, case.size("rotated")),
            "inverse": case.fact("inverse"),
            "numerics": numerics_of(case),
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance(case.dtype, elementwise=True)

    def wide(self, case: Case, arguments: Arguments) -> Arguments:
        """Frequencies stay float32: an angle is a float32 product in every precision."""
        return {**super().wide(case, arguments), "frequencies": arguments["frequencies"]}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        own = (arguments[name] for name in ("x", "positions", "frequencies", "inverse"))
        return {"out": rotated(*own)}


ROTATIONS: tuple[OperatorSuite, ...] = (Rope(),)
