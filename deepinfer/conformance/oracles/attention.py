"""Sparse attention and its output projection, one row at a time in float64.

Source: model specification, sections 4.7 to 4.9.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Batch, LinearSource, Region, WindowSpan
from deepinfer.conformance.oracles import formats, pages
from deepinfer.conformance.oracles.compressor import rope, rounded
from deepinfer.formats import Scheme


def attend(
    queries: Tensor,
    window: Region,
    span: WindowSpan,
    main: Region | None,
    indices: Tensor | None,
    sink: Tensor,
    scale: float,
    batch: Batch,
) -> Tensor:
    """Attended heads [T, A, D] float64, not rounded. A row without any key has zeros."""
    out = torch.zeros(queries.shape, dtype=torch.float64)
    for row in range(batch.num_rows):
        owner = batch.sequence[row]
        if owner < 0:
            continue
        positions = torch.arange(int(span.first[row]), int(span.last[row]) + 1)
        keys = [pages.read(window, batch, owner.expand(len(positions)), positions)]
        if main is not None and indices is not None:
            chosen = indices[row][indices[row] >= 0].long()
            keys.append(pages.read(main, batch, owner.expand(len(chosen)), chosen))
        values = torch.cat(keys)
        if len(values):
            logits = queries[row].double() @ values.T * scale
            logits = torch.cat((logits, sink.double().unsqueeze(-1)), -1)
            out[row] = torch.softmax(logits, -1)[:, :-1] @ values
    return out


def weight(source: LinearSource) -> Tensor:
    """The float64 values [M, K] of a published matrix: fp8 with a scale per 32 x 32, or plain."""
    stored = source.weight.read()
    if source.scale is None:
        return stored.double()
    scales = source.scale.read().repeat_interleave(32, 0)[: len(stored)]
    return formats.decode(stored, scales, Scheme.FP8_BLOCK32)


def attend_output(
    heads: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    wo_a: Tensor,
    wo_b: Tensor,
    groups: int,
    scheme: Scheme | None,
    dtype: torch.dtype,
) -> Tensor:
    """The output rows [T, H] in `dtype` of attended heads [T, A, D]: rotated back and projected."""

    def consumed(x: Tensor) -> Tensor:
        if scheme is None:
            return x
        return formats.decode(*formats.encode(x.to(dtype), scheme), scheme)

    turned = rope(rounded(heads, dtype), -positions, frequencies, dtype).flatten(1)
    parts = zip(turned.chunk(groups, 1), wo_a.chunk(groups, 0), strict=True)
    middle = torch.cat([consumed(part) @ matrix.T for part, matrix in parts], 1)
    return (consumed(rounded(middle, dtype)) @ wo_b.T).to(dtype)
