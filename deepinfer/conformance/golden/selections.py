"""Comparison of selected indices as sets, with the swaps that equal scores explain."""

from __future__ import annotations

import torch
from torch import Tensor

RELATIVE = {"fp32": 1e-5, "bf16": 2 * 2.0**-8}
"""Scores this close (relative) may be ranked either way: fp32 rounding, or two bf16 steps."""


def swapped_entries(got: Tensor, want: Tensor, scores: Tensor | None, compute: str) -> int:
    """Number of entries that only one side selected and no near-tie explains.

    got, want [T, K], -1 for none (widths may differ); scores [T, C] of the entries, or None to
    compare strictly. An entry is explained when the side that has it and the side that lacks it
    hold entries with scores equal within the compute precision.
    """
    unexplained = 0
    for row in range(len(want)):
        ours = {int(i) for i in got[row] if i >= 0}
        theirs = {int(i) for i in want[row] if i >= 0}
        only_ours, only_theirs = sorted(ours - theirs), sorted(theirs - ours)
        if not only_ours and not only_theirs:
            continue
        if scores is None or len(only_ours) != len(only_theirs):
            unexplained += len(only_ours) + len(only_theirs)
            continue
        left = scores[row, torch.tensor(only_ours)].double().sort().values
        right = scores[row, torch.tensor(only_theirs)].double().sort().values
        allowed = RELATIVE[compute] * torch.maximum(left.abs(), right.abs())
        unexplained += int(((left - right).abs() > allowed).sum()) * 2
    return unexplained


def kept_blocks(mask: Tensor, size: int, count: int) -> Tensor:
    """Numbers of the blocks of `size` entries that a mask [T, C] touches: [T, count], -1 filled."""
    blocks = torch.full((len(mask), count), -1, dtype=torch.int32)
    for row, kept in enumerate(mask):
        numbers = (kept.nonzero().flatten() // size).unique()
        blocks[row, : len(numbers)] = numbers.to(torch.int32)
    return blocks


def block_scores(scores: Tensor, size: int) -> Tensor:
    """Highest score of each block of `size` entries: [T, C] -> [T, ceil(C / size)]."""
    missing = -scores.shape[1] % size
    padded = torch.nn.functional.pad(scores, (0, missing), value=float("-inf"))
    return padded.view(len(padded), -1, size).amax(-1)
