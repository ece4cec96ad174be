"""Which entries each layer reads: its own window, its source's entries, and the right selection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from deepinfer.backend import Batch, Region, Selection
from deepinfer.engine import ModelRunner
from tests.engine.runs import Piece, random_tokens, step

LENGTH = 40


@dataclass
class Seen:
    """What the operators of one step were given and gave, in order of the layers."""

    batches: list[Batch] = field(default_factory=list)
    attended: list[tuple[Region, Region | None, Selection | None]] = field(default_factory=list)
    selected: list[tuple[Region, torch.Tensor | None, Selection]] = field(default_factory=list)
    updated: list[tuple[Region, Region]] = field(default_factory=list)

    def tap(self, operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        if operator == "attend_output":
            _, window, _, main, selection, _, _, batch, *_ = arguments
            self.attended.append((window, main, selection))
            self.batches.append(batch)
        elif operator == "select":
            _, _, _, keys, candidates, *_ = arguments
            self.selected.append((keys, candidates, result))
        elif operator == "update_context":
            _, _, _, main, index, *_ = arguments
            self.updated.append((main, index))


@pytest.fixture(scope="module")
def seen(small_runner: ModelRunner) -> Seen:
    """A prompt of the small model, whose layers are: window; ratio 2 full, reindex; ratio 1 full
    and candidate source, reindex, reuse."""
    seen = Seen()
    tokens = random_tokens(small_runner, LENGTH)
    cache = small_runner.cache.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_runner.backbone, "operators", small_runner.operators.tapped(seen.tap))
        step(small_runner, [Piece(tokens, 0, LENGTH, cache)])
    small_runner.cache.close(cache)
    return seen


def test_every_layer_attends_to_its_own_window(seen: Seen, small_runner: ModelRunner) -> None:
    pools = small_runner.pools
    assert [window for window, _, _ in seen.attended] == [pools.window_region(i) for i in range(6)]


def test_layers_read_the_entries_of_their_source(seen: Seen, small_runner: ModelRunner) -> None:
    main = small_runner.pools.main
    assert [entries for _, entries, _ in seen.attended] == [
        None,
        *([main(1)] * 2),
        *([main(3)] * 3),
    ]


def test_only_sources_write_entries(seen: Seen, small_runner: ModelRunner) -> None:
    pools = small_runner.pools
    assert seen.updated == [(pools.main(i), pools.index(i)) for i in (1, 3)]


def test_index_layers_score_the_keys_of_their_source(seen: Seen, small_runner: ModelRunner) -> None:
    index = small_runner.pools.index
    assert [keys for keys, _, _ in seen.selected] == [index(1), index(1), index(3), index(3)]


def test_layers_attend_to_the_last_selection(seen: Seen) -> None:
    """The reuse layer takes over what the layer before it selected."""
    results = [result for _, _, result in seen.selected]
    given = [selection for _, _, selection in seen.attended]
    assert given[0] is None
    for selection, result in zip(given[1:], [*results, results[3]], strict=True):
        assert selection is not None
        assert torch.equal(selection.indices, result.indices)


def test_candidates_go_to_index_layers_after_their_source(seen: Seen) -> None:
    given = [candidates for _, candidates, _ in seen.selected]
    made = seen.selected[2][2].candidates
    assert given[:3] == [None] * 3
    assert made is not None
    assert given[3] is made


def test_candidates_restrict_the_selection(seen: Seen, small_runner: ModelRunner) -> None:
    text = small_runner.config.text
    size, kept = text.candidate_block_size, text.candidate_topk_blocks
    candidates = seen.selected[3][1]
    assert candidates is not None
    assert candidates.shape == (LENGTH, kept)
    indices = seen.selected[3][2].indices
    for row in range(LENGTH):
        blocks = set(candidates[row].tolist()) - {-1}
        chosen = {entry for entry in indices[row].tolist() if entry >= 0}
        assert len(blocks) == min(kept, row // size + 1), row
        assert {entry // size for entry in chosen} <= blocks, row
        assert max(chosen) <= row
    outside = [
        entry
        for row in range(LENGTH)
        for entry in seen.selected[2][2].indices[row].tolist()
        if entry >= 0 and entry // size not in candidates[row].tolist()
    ]
    assert outside, "the source's own selection is not restricted"


def test_numbers_of_selected_entries(seen: Seen, small_runner: ModelRunner) -> None:
    """As many as are visible, at most `index_topk`; complete groups only."""
    for (_, _, result), ratio in zip(seen.selected, (2, 2, 1, 1), strict=True):
        counts = (result.indices >= 0).sum(1).tolist()
        visible = [(row + 1) // ratio for row in range(LENGTH)]
        assert counts == [min(count, small_runner.config.text.index_topk) for count in visible]
