"""Shared parts of the suites of row operators: edges, calls, activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from deepinfer.backend import Activation, CallSpec, Fact
from deepinfer.conformance.case import Case
from deepinfer.conformance.oracles.stored import block_values
from deepinfer.formats import Scheme, quantise

ROWS = {"empty": 0, "one": 1, "tile-1": 15, "tile": 16, "tile+1": 17, "long": 130}
FEW_ROWS = {"empty": 0, "one": 1, "tile": 16, "tile+1": 17}
EPS = 1e-20
"""`rms_norm_eps` of the released model: small on purpose."""
FP8 = Scheme.FP8_BLOCK32.value


def call(case: Case, operator: str, facts: Mapping[str, Fact], step: str | None = None) -> CallSpec:
    """A call with the case's rows and precision, as the model would list it."""
    rows = max(1, case.size("rows"))
    return CallSpec.of(operator, {"dtype": case.dtype, **facts}, {"rows": (rows, rows)}, step)


def norm_call(case: Case, width: int, step: str | None) -> CallSpec:
    """A norm inside a step."""
    return call(case, "rms_norm", {"width": width, "eps": EPS}, step)


def norm_quantise_calls(
    case: Case, width: int, scheme: Fact, step: str | None
) -> Iterator[CallSpec]:
    """A `norm_quantise` and what is inside."""
    yield call(case, "norm_quantise", {"width": width, "scheme": scheme}, step)
    yield norm_call(case, width, "norm_quantise")
    yield call(case, "quantise", {"width": width, "scheme": scheme}, "norm_quantise")


def linear_call(
    case: Case,
    inputs: int,
    outputs: int,
    kind: str,
    step: str | None,
    scheme: Fact = None,
    out: str | None = None,
) -> CallSpec:
    """A matmul, by itself or inside a step; one with unquantised weights has no scheme."""
    facts: dict[str, Fact] = {
        "inputs": inputs,
        "outputs": outputs,
        "weight": kind,
        "scheme": scheme if kind in ("fp8", "fp4") else None,
        "out": out or case.dtype,
    }
    return call(case, "linear", facts, step)


def scheme_of(case: Case) -> Scheme | None:
    """The block scheme that a case states, or that its numeric mode implies."""
    facts = dict(case.facts)
    name = facts.get("scheme", FP8 if case.numerics == "infer" else None)
    return None if name is None else Scheme(str(name))


def activation(x: Tensor, scheme: Scheme | str | None) -> Activation:
    """Values with their quantised half."""
    if scheme is None:
        return Activation(x)
    return Activation(x, quantise(x, Scheme(scheme)), Scheme(scheme))


def read(a: Activation) -> Tensor:
    """What a quantised matmul sees of an activation, in its own dtype where that is exact."""
    if a.quantised is None or a.scheme is None:
        return a.values
    quantised = type(a.quantised)(*(half.detach().cpu() for half in a.quantised))
    wide = block_values(quantised, a.scheme)
    return wide.to(torch.float64 if a.dtype == torch.float64 else torch.float32)


def scheme_number(a: Activation) -> Tensor:
    """Which scheme an activation names: its place in the list, -1 for none."""
    return torch.tensor([-1 if a.scheme is None else list(Scheme).index(a.scheme)])


def inconsistent(a: Activation) -> Tensor:
    """Bytes of the quantised half that are not those of the values: [rows]."""
    if a.quantised is None or a.scheme is None:
        return torch.zeros(a.values.shape[0], dtype=torch.int64)
    own = quantise(a.values.detach().cpu(), a.scheme)
    differs = torch.zeros(a.values.shape[0], dtype=torch.int64)
    for got, want in zip(a.quantised, own, strict=True):
        differs += (got.detach().cpu() != want).flatten(1).sum(1)
    return differs
