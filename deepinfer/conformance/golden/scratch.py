"""Small pools and batches for checks of single operators, and values read back from them."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Activation, Batch, Contract, Pool, Region, Table
from deepinfer.backend.batch import CONTEXT
from deepinfer.conformance.golden.metrics import NAN
from deepinfer.formats import EntryFormat, Scheme, dequantise, e2m1, e4m3, quantise

PAGE_TOKENS = 16


def single_sequence(operators: Contract, length: int) -> Batch:
    """A batch of one new sequence with the positions 0..length-1.

    It has context block 1, and window pages 1, 2, ... of 16 tokens.
    """
    pages = max(1, -(-length // PAGE_TOKENS))
    tensor = operators.tensor
    return Batch(
        token_ids=tensor([0] * length, torch.int64),
        positions=tensor(list(range(length)), torch.int64),
        sequence=tensor([0] * length, torch.int64),
        query_start=tensor([0, length], torch.int64),
        context_lengths=tensor([length], torch.int64),
        slots=tensor([1], torch.int64),
        image_mask=tensor([False] * length, torch.bool),
        context=Table(tensor([[1]], torch.int64), tensor([0], torch.int64)),
        window=Table(tensor([list(range(1, pages + 1))], torch.int64), tensor([0], torch.int64)),
        max_context=length,
    )


def region(
    operators: Contract, format: EntryFormat, width: int, entries: int, group: str = CONTEXT
) -> Region:
    """A region in a pool of its own: 2 context blocks, or pages for `entries` window tokens."""
    per_block = entries if group == CONTEXT else PAGE_TOKENS
    blocks = 2 if group == CONTEXT else 1 + -(-entries // PAGE_TOKENS)
    size = format.region_bytes(per_block, width)
    data = torch.zeros((blocks, size), dtype=torch.uint8, device=operators.device)
    return Region(Pool(data, size), group, 0, format, width, per_block)


def stored(operators: Contract, format: EntryFormat, values: Tensor) -> Tensor:
    """The values [T, D], written to a cache and read back."""
    rows = len(values)
    batch = single_sequence(operators, rows)
    place = region(operators, format, values.shape[1], rows)
    operators.store(values, place, batch.positions, batch)
    return operators.load(place, batch.sequence, batch.positions, batch, values.dtype)


def dequantised(activation: Activation) -> Tensor:
    """The values of an activation's quantised half."""
    if activation.quantised is None or activation.scheme is None:
        raise ValueError("the activation is not quantised")
    codes, scales = activation.quantised
    return dequantise(codes, scales, activation.scheme, activation.dtype)


def codes_apart(values: Tensor, got: Tensor, want: Tensor) -> float:
    """The largest distance, in e2m1 codes, of two NVFP4 round trips of the same values [..., n]."""
    if bool(torch.isnan(got).any() | torch.isnan(want).any()):
        return NAN
    scales = e4m3.decode(quantise(values, Scheme.NVFP4).scales, torch.float32)
    scales = scales.repeat_interleave(Scheme.NVFP4.group_size, -1)

    def place(x: Tensor) -> Tensor:
        codes = e2m1.encode(x.float() / scales).int()
        return torch.where(codes & 8 > 0, -(codes & 7), codes & 7)

    return float((place(got) - place(want)).abs().max())
