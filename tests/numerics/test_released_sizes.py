"""One layer of each kind at the released sizes, against a plain recomputation in float64.

Hidden 5120, 64 heads of 512, 384 experts, an Engram table of 384,006,168 rows, and a context behind
which top-k and candidate blocks leave entries out. Files are sparse. The short form runs five of
the seven layers, which hold every kind between them, and of every large matrix recomputes one
piece of 512 rows in eight; the soak runs leave nothing out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deepinfer.backend import Numerics
from deepinfer.backend.resolution import Operators
from deepinfer.checkpoint import Checkpoint
from tests.numerics import released
from tests.numerics.layers import recompute
from tests.numerics.released import LAYERS, Released
from tests.numerics.stored import Stored
from tests.numerics.teacher import Teacher

pytestmark = pytest.mark.slow

SHORT, SHARE = (1, 2, 3, 4, 5), 8
SOAK = [(Numerics.INFER, torch.bfloat16), (Numerics.REF, torch.float32)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    directory: Path = tmp_path_factory.mktemp("released")
    released.write(directory)
    with Checkpoint.open(directory, progress=False) as opened:
        yield opened
    shutil.rmtree(directory)  # more than a gigabyte, which pytest would keep


@pytest.fixture(scope="module")
def recorded(checkpoint: Checkpoint, operators: Operators) -> Released:
    released.fill_layers(checkpoint, SHORT)
    modes = Numerics.INFER, torch.bfloat16
    return Released(checkpoint, operators.backend, operators, *modes, SHORT)


@pytest.fixture(scope="module", params=SOAK, ids=["infer-bf16", "ref-fp32"])
def soak(request: pytest.FixtureRequest, checkpoint: Checkpoint, operators: Operators) -> Released:
    released.fill_layers(checkpoint, LAYERS)
    return Released(checkpoint, operators.backend, operators, *request.param, LAYERS)


def check(run: Released, layer: int, share: int) -> dict[str, float]:
    stored = Stored(run.checkpoint, f"layers.{layer}", share)
    return recompute(Teacher(run.records[layer], stored, run.text, run.numerics))


@pytest.mark.parametrize("layer", SHORT, ids=LAYERS.get)
def test_layer_of_the_released_sizes(recorded: Released, layer: int) -> None:
    assert max(check(recorded, layer, SHARE).values()) <= 1


@pytest.mark.soak
@pytest.mark.parametrize("layer", LAYERS, ids=LAYERS.get)
def test_every_row_of_every_matrix(soak: Released, layer: int) -> None:
    assert max(check(soak, layer, 1).values()) <= 1


def test_sizes_and_choices_are_those_meant(recorded: Released) -> None:
    text = recorded.text
    assert (text.hidden_size, text.num_attention_heads, text.head_dim) == (5120, 64, 512)
    assert recorded.records[1].weights.experts.num_slots == 384
    engram = recorded.records[1].weights.engram
    assert engram is not None
    assert engram.table.shape == (384_006_168, 256)
    for layer in (2, 4, 5):
        chosen = recorded.records[layer].recording.of("top")[0].result
        visible = (recorded.batch.positions + 1) // text.compress_ratios[layer]
        assert bool((chosen >= 0).all())
        assert int(visible.min()) > text.index_topk
    candidates = recorded.records[5].candidates
    assert candidates is not None
    assert candidates.shape[1] == 2048
    assert int(recorded.batch.positions.min()) // 8 > 2048


@pytest.mark.parametrize("layer", [1, 2], ids=LAYERS.get)
def test_no_matrix_is_ever_dequantised_whole(
    checkpoint: Checkpoint, recorded: Released, layer: int
) -> None:
    """In float32 wq_b alone is 168 MB, the Engram projection 629 MB."""
    script = "import sys, torch; from tests.numerics.released import peak_of_a_layer as peak;"
    script += "torch.set_num_threads(1); print(peak(sys.argv[1], int(sys.argv[2])))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(checkpoint.directory), str(layer)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"\nlayer {layer}: {int(done.stdout):,} bytes")
    assert int(done.stdout) < 100_000_000


def test_filled_and_empty_experts_are_both_chosen(recorded: Released) -> None:
    for record in recorded.records.values():
        ids = set(record.recording.of("route")[0].result.ids.flatten().tolist())
        assert ids <= set(released.FAVOURED)
        assert len(ids) > 6
        assert {released.FAVOURED[expert] for expert in ids} == {True, False}
