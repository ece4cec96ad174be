"""The two ways in which operator vectors are compared: closeness and equality."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.conformance.golden.metrics import bf16_steps, relative
from deepinfer.conformance.golden.report import Item, Measure

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FP32_RELATIVE = 1e-5
"""fp32 outputs: sums of a few hundred products in another order stay far below this."""


def close(name: str, compute: str, got: Tensor, want: Tensor) -> Item:
    """fp32 outputs by relative error of each row, bf16 outputs in steps of bf16."""
    if compute == "fp32":
        errors = relative(got.flatten(1), want.flatten(1))
        worst = float(errors.max()) if len(errors) else 0.0
        return Item.of(name, compute, Measure("max rel", worst, "<=", FP32_RELATIVE))
    measure = Measure("bf16 steps", bf16_steps(got, want), "<=", 1)
    return Item.of(name, compute, measure)


def equal(name: str, compute: str, got: Tensor, want: Tensor, limit: float = 0.0) -> Item:
    """Share of elements that differ by value; two NaN are equal."""
    same = (got == want) | (torch.isnan(got.double()) & torch.isnan(want.double()))
    share = float((~same).double().mean()) if want.numel() else 0.0
    return Item.of(name, compute, Measure("elements differing", share, "<=", limit))
