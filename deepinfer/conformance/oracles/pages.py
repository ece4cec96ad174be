"""Where the bytes of cache entries are, entry by entry, and which values they hold.

In a window page and in the main part of a context block, the codes of an entry are followed by its
scales. The index part has the codes of all entries, then the scales of all. Source: model
specification, sections 5.2 to 5.4; docs/structure.md, "Cache".
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Batch, Region
from deepinfer.conformance.oracles.formats import decode

_CODES_PER_BYTE = {"window": 1, "main": 2, "index": 2}
_GROUP = {"window": 32, "main": 16, "index": 32}


def block_numbers(region: Region, batch: Batch, sequence: Tensor, entries: Tensor) -> Tensor:
    """The pool block of each pair of sequence and entry [M]; 0 where there is none."""
    table = batch.context if region.group == "context" else batch.window
    found = []
    for owner, entry in zip(sequence.tolist(), entries.tolist(), strict=True):
        number = 0
        if owner >= 0 and entry >= 0:
            column = entry // region.entries - int(table.first[owner])
            if 0 <= column < table.blocks.shape[1]:
                number = int(table.blocks[owner, column])
        found.append(number)
    return torch.tensor(found, dtype=torch.int64)


def byte_columns(region: Region, entries: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of a pool with the codes [M, c] and with the scales [M, s] of entries."""
    kind = region.format.name
    codes = region.width // _CODES_PER_BYTE[kind]
    scales = region.width // _GROUP[kind]
    place = (entries.cpu() % region.entries).unsqueeze(-1)
    if kind == "index":
        first = place * codes
        scale = region.entries * codes + place * scales
    else:
        first = place * (codes + scales)
        scale = first + codes
    return (
        region.offset + first + torch.arange(codes),
        region.offset + scale + torch.arange(scales),
    )


def read(region: Region, batch: Batch, sequence: Tensor, entries: Tensor) -> Tensor:
    """The float64 values [M, width] of entries; zeros where there is none."""
    blocks = block_numbers(region, batch, sequence, entries)
    codes, scales = byte_columns(region, entries)
    data = region.pool.data.cpu()
    row = blocks.unsqueeze(-1)
    values = decode(data[row, codes], data[row, scales], region.format.scheme)
    return torch.where(row > 0, values, torch.zeros((), dtype=torch.float64))


def touched(region: Region, batch: Batch, sequence: Tensor, entries: Tensor) -> Tensor:
    """The mask [num_blocks, stride] of bytes that may change when these entries are stored.

    These are the bytes of the entries, and those of block 0, which no sequence has.
    """
    mask = torch.zeros(region.pool.data.shape, dtype=torch.bool)
    blocks = block_numbers(region, batch, sequence, entries).unsqueeze(-1)
    for columns in byte_columns(region, entries):
        mask[blocks.expand_as(columns), columns] = True
    mask[0] = True
    return mask
