"""What several suites share: numbers of rows, constants of the model, activations."""

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
"""`rms_norm_eps` of the released model, which is unusually small."""
THETA = 160000.0
"""`compress_rope_theta` of the released model, for rotations in compressed layers."""
FP8 = Scheme.FP8_BLOCK32.value


def scheme_of(case: Case) -> Scheme | None:
    """The block scheme of a case: its fact, or else that of its numeric mode; None for none."""
    facts = dict(case.facts)
    name = facts.get("scheme", FP8 if case.numerics == "infer" else None)
    return None if name is None else Scheme(str(name))


def activation(x: Tensor, scheme: Scheme | str | None) -> Activation:
    """An activation of x, with its quantised half if there is a scheme."""
    if scheme is None:
        return Activation(x)
    return Activation(x, quantise(x, Scheme(scheme)), Scheme(scheme))


def read(a: Activation) -> Tensor:
    """What a quantised matmul reads of an activation, in float32 or float64."""
    if a.quantised is None or a.scheme is None:
        return a.values
    quantised = type(a.quantised)(*(half.detach().cpu() for half in a.quantised))
    wide = block_values(quantised, a.scheme)
    return wide.to(torch.float64 if a.dtype == torch.float64 else torch.float32)


def scheme_number(a: Activation) -> Tensor:
    """The scheme of an activation, as its place in `Scheme`; -1 for none."""
    return torch.tensor([-1 if a.scheme is None else list(Scheme).index(a.scheme)])


def inconsistent(a: Activation) -> Tensor:
    """How many bytes of the quantised half of each row [rows] do not fit its values."""
    if a.quantised is None or a.scheme is None:
        return torch.zeros(a.values.shape[0], dtype=torch.int64)
    own = quantise(a.values.detach().cpu(), a.scheme)
    differs = torch.zeros(a.values.shape[0], dtype=torch.int64)
    for got, want in zip(a.quantised, own, strict=True):
        differs += (got.detach().cpu() != want).flatten(1).sum(1)
    return differs
