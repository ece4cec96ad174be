"""Shared parts of the suites of row operators: edges, calls, activations."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Activation
from deepinfer.conformance.case import Case
from deepinfer.conformance.oracles.stored import block_values
from deepinfer.formats import Scheme, quantise

ROWS = {"empty": 0, "one": 1, "tile-1": 15, "tile": 16, "tile+1": 17, "long": 130}
FEW_ROWS = {"empty": 0, "one": 1, "tile": 16, "tile+1": 17}
EPS = 1e-20
"""`rms_norm_eps` of the released model: small on purpose."""
THETA = 160000.0
"""`compress_rope_theta` of the released model: of rotations in compressed layers."""
FP8 = Scheme.FP8_BLOCK32.value


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
