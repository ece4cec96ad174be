"""Metrics of the golden check, as its data define them."""

from __future__ import annotations

import torch
from torch import Tensor


def relative(got: Tensor, want: Tensor) -> Tensor:
    """RMS of the difference over RMS of the wanted row, per row (first axis): [T] float64.

    A wanted row of zeros gives 0 where the got row is zero too, else infinity. NaN gives NaN.
    """
    got = got.double().flatten(1)
    want = want.double().flatten(1)
    both_infinite = (got == want) & torch.isinf(want)
    difference = torch.where(both_infinite, torch.zeros_like(want), got - want)
    want = torch.where(torch.isinf(want), torch.zeros_like(want), want)
    error = difference.pow(2).mean(1).sqrt()
    scale = want.pow(2).mean(1).sqrt()
    return torch.where(error == 0, torch.zeros_like(error), error / scale)


def quantile(values: Tensor, share: float) -> float:
    """The value that a share of the entries does not exceed (nearest rank, from above)."""
    if values.numel() == 0:
        return 0.0
    if torch.isnan(values).any():
        return float("nan")
    ordered = values.sort().values
    rank = min(len(ordered) - 1, int(-(-share * len(ordered) // 1)) - 1)
    return float(ordered[max(rank, 0)])


def median(values: Tensor) -> float:
    """Middle value, the mean of two for an even count."""
    return float(values.quantile(0.5)) if values.numel() else 0.0


def agreement(got: Tensor, want: Tensor) -> float:
    """Share of rows whose highest logit stands at the same place."""
    return float((got.argmax(-1) == want.argmax(-1)).double().mean()) if len(want) else 1.0


def bf16_steps(got: Tensor, want: Tensor) -> float:
    """Largest distance in steps of bf16, counted on the ordered line of all bf16 numbers."""
    return float((_line(got) - _line(want)).abs().max()) if want.numel() else 0.0


def _line(values: Tensor) -> Tensor:
    bits = values.to(torch.bfloat16).view(torch.int16).long()
    return torch.where(bits < 0, -32768 - bits, bits)


def row_steps(got: Tensor, want: Tensor) -> float:
    """Largest difference in bf16 steps at the magnitude of the element or of its row's RMS.

    For sums of many rounded terms: their error is set by the row, so an element near zero, where
    the terms cancel, may be many of its own steps off.
    """
    if not want.numel():
        return 0.0
    got, want = got.double(), want.double()
    rms = want.pow(2).mean(-1, keepdim=True).sqrt()
    exponent = torch.maximum(want.abs(), rms).clamp(min=2.0**-126).log2().floor()
    return float(((got - want).abs() / torch.exp2(exponent - 7)).max())
