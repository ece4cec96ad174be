"""One layer of each kind, recomputed in float64 from the operands that the engine used.

The recorded step has few rows behind a longer context, so that windows slide, selections leave
entries out, candidate blocks are dropped, and a compressor finds a pending member.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.backend import Numerics
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import ModelRunner
from tests.numerics.checkpoints import small_config, write_filled
from tests.numerics.engines import random_prompt, record_step, runner_of
from tests.numerics.layers import recompute
from tests.numerics.recording import LayerRecord
from tests.numerics.stored import Stored
from tests.numerics.teacher import Teacher

START, ROWS = 81, 6
BUNDLED = {
    0: "window",
    1: "window, Engram",
    2: "full r2",
    3: "reuse r2",
    4: "reindex r2, Engram",
    5: "full r1, candidate source",
    6: "reindex r1 among candidates",
    7: "reuse r1",
}
SMALL = {
    0: "full r1, Engram",
    1: "reuse r1",
    2: "window",
    3: "full r2, candidate source",
    4: "reindex r2 among candidates",
    5: "reuse r2, Engram",
}
MODES = [("infer", "bf16"), ("ref", "bf16"), ("infer", "fp32"), ("ref", "fp32")]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    write_filled(directory, small_config())
    return directory


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: "-".join(mode))
def mode(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


class Recorded:
    """One recorded step of an engine."""

    def __init__(self, runner: ModelRunner) -> None:
        self.engine = runner
        self.records = record_step(runner, random_prompt(runner, START + ROWS), START)

    def check(self, layer: int) -> dict[str, float]:
        """Recompute a layer."""
        record: LayerRecord = self.records[layer]
        stored = Stored(self.engine.checkpoint, f"layers.{layer}")
        text, numerics = self.engine.config.text, self.engine.numerics
        return recompute(Teacher(record, stored, text, Numerics(numerics)))


@pytest.fixture(scope="module")
def bundled(mode: tuple[str, str]) -> Iterator[Recorded]:
    with runner_of(bundled_checkpoint(), *mode) as runner:
        yield Recorded(runner)


@pytest.fixture(scope="module")
def other(small: Path, mode: tuple[str, str]) -> Iterator[Recorded]:
    with runner_of(small, *mode) as runner:
        yield Recorded(runner)


def summary(used: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.2f}" for name, share in sorted(used.items()))


@pytest.mark.slow
@pytest.mark.parametrize("layer", BUNDLED, ids=BUNDLED.get)
def test_layer_of_the_bundled_checkpoint(bundled: Recorded, layer: int) -> None:
    used = bundled.check(layer)
    print(f"\nlayer {layer} ({BUNDLED[layer]}): {summary(used)}")
    assert max(used.values()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("layer", SMALL, ids=SMALL.get)
def test_layer_of_another_schedule(other: Recorded, layer: int) -> None:
    used = other.check(layer)
    assert max(used.values()) <= 1


@pytest.mark.slow
def test_the_recorded_step_leaves_entries_out(bundled: Recorded) -> None:
    text, positions = bundled.engine.config.text, bundled.records[0].batch.positions
    assert int(positions[0]) >= text.sliding_window
    for layer in (2, 4, 5, 6):
        visible = (positions + 1) // text.compress_ratios[layer]
        assert int(visible.min()) > text.index_topk
    blocks = (positions + text.candidate_block_size) // text.candidate_block_size
    assert int(blocks.min()) > text.candidate_topk_blocks
    assert positions[0] % 2 == 1  # completes a group whose first member is pending
    assert len(bundled.records) == len(BUNDLED)
