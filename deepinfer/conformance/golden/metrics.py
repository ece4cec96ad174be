"""Metrics of the golden checks, as the data define them.

NaN in one of the values gives NaN, and so do empty tensors. NaN is within no limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

NAN = float("nan")


def relative(got: Tensor, want: Tensor) -> Tensor:
    """Relative error of each row [T] float64: RMS of the difference over RMS of the wanted row.

    A wanted row of zeros gives 0 if the got row is zero too, else infinity. Equal infinities have
    no difference; any other infinity gives infinity.
    """
    got = got.double().flatten(1)
    want = want.double().flatten(1)
    both_infinite = (got == want) & torch.isinf(want)
    difference = torch.where(both_infinite, torch.zeros_like(want), got - want)
    want = torch.where(torch.isinf(want), torch.zeros_like(want), want)
    error = difference.pow(2).mean(1).sqrt()
    scale = want.pow(2).mean(1).sqrt()
    return torch.where(error == 0, torch.zeros_like(error), error / scale)


def worst(values: Tensor) -> float:
    """The largest value."""
    return float(values.max()) if values.numel() else NAN


def quantile(values: Tensor, share: float) -> float:
    """The value that a share of the entries does not exceed (nearest rank, from above)."""
    if values.numel() == 0 or bool(torch.isnan(values).any()):
        return NAN
    ordered = values.sort().values
    rank = min(len(ordered) - 1, int(-(-share * len(ordered) // 1)) - 1)
    return float(ordered[max(rank, 0)])


def median(values: Tensor) -> float:
    """The median; of an even number of values, the mean of the middle two."""
    return float(values.quantile(0.5)) if values.numel() else NAN


def agreement(got: Tensor, want: Tensor) -> float:
    """The share of rows [T, V] whose highest logit is at the same place in both."""
    return same_place(got, want.argmax(-1)) if not torch.isnan(want).any() else NAN


def same_place(got: Tensor, places: Tensor) -> float:
    """The share of rows [T, V] whose highest logit is at the wanted place [T]."""
    if not places.numel() or bool(torch.isnan(got).any()):
        return NAN
    return float((got.argmax(-1) == places).double().mean())


def bf16_steps(got: Tensor, want: Tensor) -> float:
    """The largest distance of two elements, counted in bf16 numbers from one to the other.

    An infinity is infinitely far from everything but itself.
    """
    if not want.numel() or bool(torch.isnan(got).any() | torch.isnan(want).any()):
        return NAN
    got, want = got.to(torch.bfloat16), want.to(torch.bfloat16)
    infinite = (torch.isinf(got) | torch.isinf(want)) & (got != want)
    return float("inf") if bool(infinite.any()) else float((_line(got) - _line(want)).abs().max())


def _line(values: Tensor) -> Tensor:
    bits = values.view(torch.int16).long()
    return torch.where(bits < 0, -32768 - bits, bits)


def row_steps(got: Tensor, want: Tensor) -> float:
    """The largest difference of two elements, in bf16 steps of the element or of its row's RMS.

    The larger step counts. This is for sums of many rounded terms, whose error depends on the row:
    an element near zero, where terms cancel, may be off by many steps of its own.
    """
    if not want.numel():
        return NAN
    got, want = got.double(), want.double()
    rms = want.pow(2).mean(-1, keepdim=True).sqrt()
    exponent = torch.maximum(want.abs(), rms).clamp(min=2.0**-126).log2().floor()
    return float(((got - want).abs() / torch.exp2(exponent - 7)).max())


def group_share(got: Tensor, want: Tensor, size: int) -> float:
    """The largest difference, as a share of the largest magnitude in its group of `size` channels.

    This is for values in a block format, where it tells how far a code has moved.
    """
    if not want.numel():
        return NAN
    got, want = (torch.unflatten(x.double(), -1, (-1, size)) for x in (got, want))
    error = (got - want).abs()
    share = error / want.abs().amax(-1, keepdim=True)
    return float(torch.where(error == 0, torch.zeros_like(share), share).max())
