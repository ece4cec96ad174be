"""Cases of `enter` and `advance`, the steps before and between sub-layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from deepinfer.backend import Activation, Fact, Mix, SubLayer
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.hyper import random_mix, site
from deepinfer.conformance.cases.specs import (
    EPS,
    FP8,
    ROWS,
    inconsistent,
    read,
    scheme_of,
)
from deepinfer.conformance.oracles.hyper import collapsed, expanded, predicted
from deepinfer.conformance.oracles.rows import norm
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.conformance.tolerances import (
    BF16_QUANTISED,
    EXACT,
    MIX,
    MIX_OF_ROUNDED,
    TWICE_ROUNDED,
    Tolerance,
    float_tolerance,
)
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES

ITERATIONS = 20
SCHEMES = (FP8, None)
MIXES = ("mix.pre", "mix.post", "mix.comb")
READ = ("activation.values", "activation.read", "activation.inconsistent")


def activation_outputs(a: Activation) -> Outputs:
    """An activation as outputs: its values, its quantised half, and whether the two agree."""
    return {
        "activation.values": a.values,
        "activation.read": read(a),
        "activation.inconsistent": inconsistent(a),
    }


def mix_outputs(mix: Mix) -> Outputs:
    """A mix as outputs: its three parts."""
    return {f"mix.{name}": part for name, part in mix._asdict().items()}


class Enter(OperatorSuite):
    """`enter`: compute the mix, read the streams by the pre mix before, normalise, quantise."""

    operator = "enter"
    row_arguments: ClassVar[tuple[str, ...]] = ("streams", "pre")
    row_outputs: ClassVar[tuple[str, ...]] = (*MIXES, *READ)
    nan_argument = "streams"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for scheme in SCHEMES:
            for dtype in COMPUTE_DTYPES:
                yield self._case(5, 4, 32, scheme, dtype, weights="steep", edge="steep")
                for values in ("large", "ties", "zeros", "nan_row"):
                    yield self._case(5, 4, 32, scheme, dtype, values=values)
                for streams, width in ((1, 32), (2, 64), (4, 128)):
                    yield self._case(5, streams, width, scheme, dtype, edge="width")
                for edge, rows in ROWS.items():
                    if edge != "long" or scheme:
                        yield self._case(rows, 4, 32, scheme, dtype, edge=edge)
            yield self._case(3, 4, 5120, scheme, "bf16", edge="released")
        if tier.includes(Tier.FULL):
            for seed in range(1, 4):
                more: dict[str, Any] = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                yield self._case(33, 4, 5120, FP8, "bf16", **more)

    def _case(
        self,
        rows: int,
        streams: int,
        width: int,
        scheme: str | None,
        dtype: str,
        weights: str = "mild",
        **more: Any,
    ) -> Case:
        facts: dict[str, Fact] = {
            "rows": rows,
            "streams": streams,
            "width": width,
            "scheme": scheme,
            "weights": weights,
        }
        return Case.of(self.operator, facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, streams, width = (case.size(name) for name in ("rows", "streams", "width"))
        dtype = COMPUTE_DTYPES[case.dtype]
        return {
            "streams": make(case.values, (rows, streams, width), generator, dtype),
            "pre": random_mix(rows, streams, dtype, generator).pre,
            "sub_layer": self.sub_layer(case, generator),
            "scheme": scheme_of(case),
        }

    @staticmethod
    def sub_layer(case: Case, generator: torch.Generator) -> SubLayer:
        """Mixing site and norm of a sub-layer."""
        streams, width = case.size("streams"), case.size("width")
        weights = str(case.fact("weights"))
        return SubLayer(
            site(streams, width, ITERATIONS, weights, generator),
            1 + 0.1 * torch.randn(width, generator=generator),
            EPS,
        )

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {**mix_outputs(result.mix), **activation_outputs(result.activation)}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if output == "activation.inconsistent":
            return EXACT
        if output == "activation.read":
            return BF16_QUANTISED
        if case.dtype == "fp64":
            return float_tolerance("fp64")
        if output in MIXES:
            return self.mixes(case)
        return TWICE_ROUNDED if case.dtype == "bf16" else float_tolerance("fp32")

    def mixes(self, case: Case) -> Tolerance:
        """The tolerance of the parts of a mix."""
        return MIX

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        streams, sub_layer = arguments["streams"], arguments["sub_layer"]
        values = norm(collapsed(streams, arguments["pre"]), sub_layer.norm, sub_layer.norm_eps)
        return {**mix_outputs(predicted(streams, sub_layer.site)), "activation.values": values}


class Advance(Enter):
    """`advance`: write the output of a sub-layer into the streams, then enter the next one."""

    operator = "advance"
    row_arguments = ("out", "streams", "mix")
    row_outputs = ("streams", *MIXES, *READ)
    nan_argument = "out"

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        rows, streams, width = (case.size(name) for name in ("rows", "streams", "width"))
        dtype = COMPUTE_DTYPES[case.dtype]
        return {
            "out": make(case.values, (rows, width), generator, dtype),
            "streams": make(case.values, (rows, streams, width), generator, dtype),
            "mix": random_mix(rows, streams, dtype, generator),
            "next_sub_layer": self.sub_layer(case, generator),
            "scheme": scheme_of(case),
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {"streams": result.streams, **super().outputs(case, result, arguments)}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if output == "streams":
            return float_tolerance(case.dtype, elementwise=True)
        return super().tolerance(case, output)

    def mixes(self, case: Case) -> Tolerance:
        """Wider than in `enter`, because the mix is computed from streams that were rounded."""
        return MIX_OF_ROUNDED if case.dtype == "bf16" else MIX

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        mix = arguments["mix"]
        streams = expanded(arguments["out"], arguments["streams"], mix)
        entered = {"streams": streams, "pre": mix.pre, "sub_layer": arguments["next_sub_layer"]}
        return {"streams": streams, **super().oracle(case, entered)}


HYPER_STEPS: tuple[OperatorSuite, ...] = (Enter(), Advance())
