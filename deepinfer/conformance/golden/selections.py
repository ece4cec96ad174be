"""Comparison of selected indices as sets, with the swaps that equal scores explain."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.conformance.golden.report import Item, Measure

FP32_RELATIVE = 1e-5
BF16_STEPS = 2
"""Scores this close may be ranked either way: fp32 rounding, or two bf16 steps."""


def same_sets(
    name: str,
    compute: str,
    got: Tensor,
    want: Tensor,
    scores: Tensor | None,
    ascending: bool = True,
) -> Item:
    """Compare selections [T, K]: every row has the same entries, except for near-ties.

    ascending: rows must also be in the contract's order, ascending and -1 filled.
    """
    got, want = got.cpu(), want.cpu()
    scores = None if scores is None else scores.cpu()
    if got.dim() != 2 or len(got) != len(want):
        return Item.broken(name, compute, f"shape {[*got.shape]}, expected {[*want.shape]}")
    if not (want >= 0).any():
        return Item.broken(name, compute, "nothing to compare: no row selects an entry")
    swapped = swapped_entries(got, want, scores, compute)
    measures = [Measure("unexplained entries", swapped, "<=", 0)]
    if ascending:
        measures.append(Measure("rows out of order", out_of_order(got), "<=", 0))
    return Item.of(name, compute, *measures)


def swapped_entries(got: Tensor, want: Tensor, scores: Tensor | None, compute: str) -> int:
    """Number of entries that only one side selected and no near-tie explains.

    got, want [T, K], -1 for none (widths may differ); scores [T, C] of the entries, the wanted
    ones, or None to compare strictly. An entry is explained when the side that has it and the side
    that lacks it hold entries with finite scores equal within the compute precision. What is no
    selection at all counts as unexplained: an entry twice, an index below -1 or past the scores.
    """
    unexplained = 0
    for row, (ours, theirs) in enumerate(zip(got.tolist(), want.tolist(), strict=True)):
        kept = [entry for entry in ours if entry != -1]
        unexplained += len(kept) - len(set(kept))
        only_ours = sorted(set(kept) - set(theirs))
        only_theirs = sorted(set(theirs) - set(kept) - {-1})
        if not only_ours and not only_theirs:
            continue
        known = scores is not None and all(0 <= entry < scores.shape[1] for entry in only_ours)
        if scores is None or not known or len(only_ours) != len(only_theirs):
            unexplained += len(only_ours) + len(only_theirs)
            continue
        left = scores[row, only_ours].double().sort().values
        right = scores[row, only_theirs].double().sort().values
        unexplained += 2 * int((~_near(left, right, compute)).sum())
    return unexplained


def _near(left: Tensor, right: Tensor, compute: str) -> Tensor:
    """Pairs of finite scores that may be ranked either way: bool."""
    largest = torch.maximum(left.abs(), right.abs())
    if compute == "fp32":
        allowed = largest * FP32_RELATIVE
    else:
        exponent = torch.frexp(largest).exponent  # a bf16 step is 2 ** (exponent - 8)
        allowed = torch.ldexp(torch.full_like(largest, BF16_STEPS), exponent - 8)
    return torch.isfinite(largest) & ((left - right).abs() <= allowed)


def out_of_order(selected: Tensor) -> int:
    """Rows [T, K] that are not strictly ascending with -1 at the end only."""
    last = torch.iinfo(torch.int64).max
    entries = selected.long().masked_fill(selected < 0, last)
    before, after = entries[:, :-1], entries[:, 1:]
    wrong = (before >= after) & (after != last)
    return int(wrong.any(1).sum())


def kept_blocks(mask: Tensor, size: int, count: int) -> Tensor:
    """Numbers of the blocks of `size` entries that a mask [T, C] touches: [T, count], -1 filled.

    ValueError where a row touches more than `count` blocks.
    """
    padded = torch.nn.functional.pad(mask, (0, -mask.shape[1] % size))
    touched = torch.unflatten(padded, 1, (-1, size)).any(-1)  # [T, blocks]
    most = int(touched.sum(1).max()) if len(mask) else 0
    if most > count:
        raise ValueError(f"a row of the mask touches {most} blocks of {size}, allowed: {count}")
    numbers = torch.arange(touched.shape[1], dtype=torch.int32, device=mask.device)
    last = touched.shape[1]
    kept = numbers.expand_as(touched).masked_fill(~touched, last).sort(1).values[:, :count]
    kept = torch.nn.functional.pad(kept, (0, count - kept.shape[1]), value=last)
    return kept.masked_fill(kept == last, -1)


def entry_mask(blocks: Tensor, size: int, width: int) -> Tensor:
    """Entries of candidate blocks [T, B]: -> bool [T, width]."""
    entries = torch.arange(width, device=blocks.device) // size
    return (entries[None, :, None] == blocks[:, None, :]).any(-1)


def block_scores(scores: Tensor, size: int) -> Tensor:
    """Highest score of each block of `size` entries: [T, C] -> [T, ceil(C / size)].

    The block of the last visible entry is always kept, so it has the score +inf.
    """
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[1] % size), value=float("-inf"))
    best = torch.unflatten(padded, 1, (-1, size)).amax(-1)
    visible = (scores > float("-inf")).sum(1)
    last = torch.div(visible - 1, size, rounding_mode="floor")
    blocks = torch.arange(best.shape[1], device=scores.device)
    return best.masked_fill(blocks == last[:, None], float("inf"))
