"""The compressor, and the norm and rotation of its results, token by token in float64.

Values are rounded to the compute precision wherever the contract rounds them. Source: model
specification, sections 3.1, 4.3 and 4.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Batch
from deepinfer.conformance.oracles.formats import bf16


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values rounded to `dtype`, kept in float64."""
    return bf16(x) if dtype == torch.bfloat16 else x.to(dtype).double()


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x [T, K] float64 over its root mean square, times the weight."""
    x = x.double()
    root = torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return rounded(x / root * weight.double(), dtype)


def rope(x: Tensor, positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Tensor:
    """x [T, D] or [T, A, D] with its last channels rotated in adjacent pairs."""
    out = x.double().clone()
    first = x.shape[-1] - 2 * len(frequencies)
    for pair, frequency in enumerate(frequencies):
        angle = (positions.float() * frequency.float()).double()
        angle = angle.view(-1, *[1] * (x.dim() - 2))
        even, odd = x[..., first + 2 * pair].double(), x[..., first + 2 * pair + 1].double()
        out[..., first + 2 * pair] = even * angle.cos() - odd * angle.sin()
        out[..., first + 2 * pair + 1] = even * angle.sin() + odd * angle.cos()
    return rounded(out, dtype)


def compress(
    values: Tensor, gates: Tensor | None, members: Tensor | None, batch: Batch, ratio: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compress a step; returns latents [T, D] float64, entries [T] and the members afterwards.

    Latents are zero in rows where no group ends. members [slots, ring, 2, D]: before the step.
    """
    left = None if members is None else members.clone()
    latents = torch.zeros(values.shape, dtype=torch.float64)
    entries = torch.full((batch.num_rows,), -1)
    for row in range(batch.num_rows):
        owner, position = int(batch.sequence[row]), int(batch.positions[row])
        if owner < 0:
            continue
        if left is None or gates is None:
            latents[row], entries[row] = values[row].double(), position
            continue
        ring = left[int(batch.slots[owner])]
        ring[position % len(ring), 0], ring[position % len(ring), 1] = values[row], gates[row]
        if (position + 1) % ratio == 0:
            places = [(position - back) % len(ring) for back in range(ratio)]
            group = ring[places].double()
            shares = torch.softmax(group[:, 1], 0)
            latents[row], entries[row] = (group[:, 0] * shares).sum(0), position // ratio
    return latents, entries, left
