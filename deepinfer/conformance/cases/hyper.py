"""Cases of the residual streams: `mix`, `collapse` and `expand`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from deepinfer.backend import Fact, Mix, MixSite
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.specs import EPS, FEW_ROWS, ROWS
from deepinfer.conformance.oracles.hyper import collapsed, expanded, predicted
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.conformance.tolerances import MIX, Tolerance, float_tolerance
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES

HC_EPS = 1e-6
WEIGHTS = {"even": (0.0, 0.0), "mild": (1.0, 1.0), "steep": (4.0, 8.0), "closed": (0.5, 0.5)}
"""The sizes of scales and bases of a mixing site, by name.

even: the mix does not depend on the streams. steep: mixes near 0 and 1, for which Sinkhorn needs
all of its passes. closed: pre mixes near 0, in which the eps of the pre mix shows.
"""

SMALL = 2.0**-13
"""Streams of this size give other results with an eps of 1e-6 than with the model's 1e-20."""


def site(
    streams: int, width: int, iterations: int, weights: str, generator: torch.Generator
) -> MixSite:
    """Weights of one mixing site."""
    scale, base = WEIGHTS[weights]
    count = 2 * streams + streams * streams
    fn = torch.randn(count, streams * width, generator=generator) * (streams * width) ** -0.5
    signs = 0.5 + torch.rand(3, generator=generator)
    bases = base * torch.randn(count, generator=generator)
    if weights == "closed":
        bases[:streams] -= 12
    return MixSite(
        fn=fn,
        base=bases,
        scale=scale * signs * torch.tensor([1.0, -1.0, 1.0]),
        iterations=iterations,
        eps=HC_EPS,
        norm_eps=EPS,
    )


def random_mix(rows: int, streams: int, dtype: torch.dtype, generator: torch.Generator) -> Mix:
    """A mix with random weights in their ranges."""
    pre = torch.rand(rows, streams, generator=generator)
    post = 2 * torch.rand(rows, streams, generator=generator)
    comb = torch.rand(rows, streams, streams, generator=generator)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return Mix(pre.to(wide), post.to(wide), comb.to(wide))


class MixSuite(OperatorSuite):
    """`mix`: projection, RMS, sigmoids and Sinkhorn."""

    operator = "mix"
    row_arguments = ("streams",)
    row_outputs = ("pre", "post", "comb")
    nan_argument = "streams"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for dtype in COMPUTE_DTYPES:
            yield self._case(5, 4, 24, dtype, edge="small")
            for values in ("large", "subnormal", "ties", "zeros", "nan_row"):
                yield self._case(5, 4, 24, dtype, values=values)
            for weights in WEIGHTS:
                for iterations in (2, 20, 1, 3):
                    more: dict[str, Any] = {"weights": weights, "edge": "iterations"}
                    yield self._case(5, 4, 32, dtype, iterations=iterations, **more)
            for streams, width in ((1, 32), (2, 17), (3, 5), (4, 1), (4, 128)):
                yield self._case(17, streams, width, dtype, edge="width")
            for edge, rows in ROWS.items():
                yield self._case(rows, 4, 32, dtype, edge=edge)
        yield self._case(3, 4, 5120, "bf16", edge="released")
        if tier.includes(Tier.FULL):
            for weights in WEIGHTS:
                for seed in range(1, 4):
                    more = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                    yield self._case(65, 4, 5120, "bf16", weights=weights, **more)

    def _case(
        self,
        rows: int,
        streams: int,
        width: int,
        dtype: str,
        iterations: int = 20,
        weights: str = "mild",
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "streams": streams,
            "width": width,
            "iterations": iterations,
            "weights": weights,
        }
        return Case.of("mix", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        streams, width = case.size("streams"), case.size("width")
        shape = case.size("rows"), streams, width
        weights = str(case.fact("weights"))
        x = make(case.values, shape, generator, COMPUTE_DTYPES[case.dtype])
        return {
            "streams": x * SMALL if case.edge == "small" else x,
            "site": site(streams, width, case.size("iterations"), weights, generator),
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance("fp64") if case.dtype == "fp64" else MIX

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return predicted(arguments["streams"], arguments["site"])._asdict()


class Collapse(OperatorSuite):
    """`collapse`: the weighted sum of the streams."""

    operator = "collapse"
    row_arguments = ("streams", "pre")
    nan_argument = "streams"

    def grid(self, tier: Tier) -> Iterator[Case]:
        yield from _grid("collapse", tier)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, streams, width = (case.size(name) for name in ("rows", "streams", "width"))
        dtype = COMPUTE_DTYPES[case.dtype]
        pre = random_mix(rows, streams, dtype, generator).pre
        if rows and case.edge != "released":
            pre[0] = torch.eye(streams)[0]  # the pre mix that a model starts with
        return {"streams": make(case.values, (rows, streams, width), generator, dtype), "pre": pre}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance(case.dtype, elementwise=True)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": collapsed(arguments["streams"], arguments["pre"])}


class Expand(OperatorSuite):
    """`expand`: new streams from the old ones and the output of a sub-layer."""

    operator = "expand"
    row_arguments = ("out", "streams", "mix")
    nan_argument = "out"

    def grid(self, tier: Tier) -> Iterator[Case]:
        yield from _grid("expand", tier)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, streams, width = (case.size(name) for name in ("rows", "streams", "width"))
        dtype = COMPUTE_DTYPES[case.dtype]
        return {
            "out": make(case.values, (rows, width), generator, dtype),
            "streams": make(case.values, (rows, streams, width), generator, dtype),
            "mix": random_mix(rows, streams, dtype, generator),
        }

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return float_tolerance(case.dtype, elementwise=True)

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": expanded(arguments["out"], arguments["streams"], arguments["mix"])}


def _grid(operator: str, tier: Tier) -> Iterator[Case]:
    def case(rows: int, streams: int, width: int, dtype: str, **more: Any) -> Case:
        facts: dict[str, Fact] = {"rows": rows, "streams": streams, "width": width}
        return Case.of(operator, facts, dtype=dtype, **more)

    for dtype in COMPUTE_DTYPES:
        for edge, rows in ROWS.items():
            yield case(rows, 4, 48, dtype, edge=edge)
        for values in ("large", "extreme", "subnormal", "ties", "zeros", "nan_row"):
            yield case(5, 4, 24, dtype, values=values)
        for streams, width in ((1, 32), (2, 17), (3, 5), (4, 1), (4, 128)):
            for edge, rows in FEW_ROWS.items():
                yield case(rows, streams, width, dtype, edge=f"width-{edge}")
    yield case(3, 4, 5120, "bf16", edge="released")
    if tier.includes(Tier.FULL):
        for seed in range(1, 4):
            yield case(65, 4, 5120, "bf16", edge="released", seed=seed, tier=Tier.FULL)


HYPER: tuple[OperatorSuite, ...] = (MixSuite(), Collapse(), Expand())
