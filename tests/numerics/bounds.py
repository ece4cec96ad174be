"""How far a right answer may lie from the float64 one.

An operator sums in float32 and rounds its result once. The rounding is at most half a step of the
result's type. A float32 sum of K terms of random sign is off by about sqrt(K) * 2^-24 / 3 of its
size, in whatever order; four times sqrt(K) * 2^-24 of the row's root mean square is allowed.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**-24  # half a step of float32, relative
HALF_STEP = {torch.bfloat16: 2.0**-8, torch.float32: UNIT}


def summed(exact: Tensor, out: torch.dtype, terms: int) -> Tensor:
    """Allowed difference of a sum of `terms` products, rounded to `out`."""
    row = exact.square().mean(-1, keepdim=True).sqrt()
    size = torch.maximum(exact.abs(), row)
    return HALF_STEP[out] * exact.abs() + 4 * (terms + 4) ** 0.5 * UNIT * size + 1e-37


def check(what: str, got: Tensor, exact: Tensor, bound: Tensor | float) -> float:
    """Assert got within bound of exact everywhere; the worst share of the bound that was used."""
    assert got.shape == exact.shape, f"{what}: {tuple(got.shape)} for {tuple(exact.shape)}"
    if not got.numel():
        return 0.0
    bound = torch.as_tensor(bound, dtype=torch.float64).expand_as(exact)
    difference = (got.double() - exact).abs()
    used = torch.where(difference == 0, 0.0, difference / bound)
    worst = int(used.nan_to_num(torch.inf).argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), exact.shape))
    assert used[place] <= 1, (
        f"{what}{list(place)}: {float(got[place])!r} for {float(exact[place])!r}, "
        f"off by {float(difference[place]):.3g} of {float(bound[place]):.3g} allowed; "
        f"{int((used > 1).sum() + used.isnan().sum())} of {used.numel()} are"
    )
    return float(used[place])
