"""Comparisons with golden values, with the tolerances of the golden data's own rules."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close(actual: Tensor, expected: Tensor, steps: int = 1) -> None:
    """fp32: 1e-5 of the largest value. bf16: at most `steps` steps of bf16 apart.

    A step is that of the value or of the row's root mean square, whichever is larger: a value that
    a sum has cancelled carries the rounding of its terms.
    """
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    difference = (actual.double() - expected.double()).abs()
    if expected.dtype == torch.bfloat16:
        size = expected.double()
        mean = size.square().mean(-1, keepdim=True).sqrt()
        step = torch.exp2(torch.floor(torch.log2(torch.maximum(size.abs(), mean))) - 7)
        worst = (difference / step).nan_to_num(0).max()
        assert worst <= steps, f"{float(worst):.3g} steps of bf16"
        return
    worst = difference.max() / expected.abs().max().clamp(min=1e-30)
    assert worst <= 1e-5, f"relative error {float(worst):.3g}"


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal bit for bit: signs of zero and NaN count too."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    ours = actual.contiguous().view(torch.uint8) if actual.numel() else actual
    theirs = expected.contiguous().view(torch.uint8) if expected.numel() else expected
    assert torch.equal(ours, theirs)


def assert_same_sets(
    actual: Tensor, expected: Tensor, scores: Tensor, tolerance: float = 0.0
) -> None:
    """Index rows equal as sets; a swapped entry must have an equal (or nearly equal) score."""
    for row, (ours, theirs) in enumerate(zip(actual.tolist(), expected.tolist(), strict=True)):
        extra, missing = set(ours) - set(theirs), set(theirs) - set(ours)
        assert len(extra) == len(missing), f"row {row}: {sorted(extra)} for {sorted(missing)}"
        if not extra:
            continue
        values = scores[row].double()
        differences = [
            abs(float(values[a] - values[b]))
            for a, b in zip(
                sorted(extra, key=lambda i: values[i]),
                sorted(missing, key=lambda i: values[i]),
                strict=True,
            )
        ]
        assert max(differences) <= tolerance * float(values[sorted(missing)].abs().max()), (
            f"row {row}: {sorted(extra)} for {sorted(missing)}"
        )
