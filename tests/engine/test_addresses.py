"""Where a running sequence reads and writes: its own blocks or the dummy, never another's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deepinfer.backend import Batch, Pool, Region, Table, block_of
from deepinfer.backend.batch import CONTEXT, WINDOW
from deepinfer.engine import ModelRunner
from deepinfer.formats import MAIN
from tests.engine.runs import Piece, random_tokens, sequences, step

NUMBERS = torch.arange(-9, 60)


@pytest.mark.parametrize("entries", [1, 2, 4, 7])
@pytest.mark.parametrize("group", [CONTEXT, WINDOW])
def test_no_entry_number_reaches_another_sequence(group: str, entries: int) -> None:
    """Negative, far too large, before the first kept page: block 0 or one of the sequence's."""
    random = np.random.default_rng(entries)
    blocks = torch.from_numpy(random.permutation(np.arange(1, 13)).reshape(3, 4))
    blocks[1, 2:] = 0  # a shorter sequence
    first = torch.tensor([0, 2, 5]) if group == WINDOW else torch.zeros(3, dtype=torch.int64)
    region = Region(Pool(torch.zeros(13, 1, dtype=torch.uint8), 1), group, 0, MAIN, 16, entries)
    table = Table(blocks, first)
    for row in range(-1, 3):
        found = block_of(region, table, torch.full_like(NUMBERS, row), NUMBERS)
        for entry, block in zip(NUMBERS.tolist(), found.tolist(), strict=True):
            column = entry // entries - int(first[row])
            inside = row >= 0 and entry >= 0 and 0 <= column < 4
            assert block == (int(blocks[row, column]) if inside else 0), (row, entry)


def test_a_step_changes_only_memory_of_its_sequences(small_runner: ModelRunner) -> None:
    """Every other byte of the pools and every other slot stays; the dummies may change."""
    tokens = random_tokens(small_runner, 37)
    pools = small_runner.pools
    with sequences(small_runner, 3) as caches:
        chunks = [Piece(tokens, 0, n, c) for n, c in zip((9, 37, 18), caches, strict=True)]
        step(small_runner, chunks)
        tensors = [pools.context.data, pools.window.data]
        states = [pools.compressor(layer) for layer in small_runner.layout.compressor_rings]
        tensors += [state.members for state in states if state is not None]
        before = [tensor.clone() for tensor in tensors]
        running = [caches[0], caches[2]]
        step(small_runner, [Piece(tokens, c.length, c.length + 3, c) for c in running])
        owned = [
            {0, *(block for cache in running for block in cache.blocks)},
            {0, *(page for cache in running for page in cache.pages)},
            *([{0, *(cache.slot for cache in running)}] * len(states)),
        ]
        for tensor, old, mine in zip(tensors, before, owned, strict=True):
            # Bytes: earlier tests may have left NaN, which differs from itself.
            now, then = (part.flatten(1).view(torch.uint8) for part in (tensor, old))
            changed = (now != then).any(1)
            numbers = set(torch.nonzero(changed).flatten().tolist())
            assert numbers <= mine
            assert numbers - {0}


@pytest.mark.slow
def test_rows_before_their_kept_pages_are_never_asked_for(small_runner: ModelRunner) -> None:
    """Every window position that attention reads has a page of the sequence."""
    seen: list[tuple[Batch, Any]] = []
    backbone = small_runner.backbone
    tokens = random_tokens(small_runner, 40)

    def span(batch: Batch) -> Any:
        result = type(backbone).window_span(backbone, batch)
        seen.append((batch, result))
        return result

    with pytest.MonkeyPatch.context() as patch, sequences(small_runner, 1) as (cache,):
        patch.setattr(backbone, "window_span", span)
        for start, stop in ((0, 13), (13, 14), (14, 30), (30, 31), (31, 40)):
            step(small_runner, [Piece(tokens, start, stop, cache)])
    assert len(seen) == 5  # once in a forward
    window, page = small_runner.config.text.sliding_window, small_runner.layout.page_tokens
    for batch, result in seen:
        assert result.width == window
        assert torch.equal(result.last, batch.positions)
        assert torch.equal(result.first, (batch.positions - window + 1).clamp(min=0))
        columns = torch.div(result.first, page, rounding_mode="floor") - batch.window.first[0]
        assert int(columns.min()) >= 0
        last = torch.div(result.last, page, rounding_mode="floor") - batch.window.first[0]
        assert bool((batch.window.blocks[0, : int(last.max()) + 1] > 0).all())
