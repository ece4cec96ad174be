"""Anonymous memory while loading stays within the printed plan plus 64 MB.

In a process of its own, because RssAnon of a process that ran other tests means nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.writer import tiny_config, write_checkpoint

ALLOWANCE = 64_000_000

SCRIPT = """
import json, sys
import torch
import deepinfer

def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

before = resident("RssAnon")
from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.plan import copied_by_default

kept, touched, growth = [], 0, 0
with Checkpoint.open(sys.argv[1], None) as checkpoint:
    for item in checkpoint.expected():
        source = checkpoint.source(item.name)
        if copied_by_default(item):
            kept.append(source.read())
        else:
            names = [item.name, item.scale_name] if item.kind.quantised else [item.name]
            for name in names:
                view = checkpoint.source(name).map()
                kept.append(view)
                touched += int(view.view(torch.uint8).flatten()[::4096].sum()) >= 0
        growth = max(growth, resident("RssAnon") - before)
    plan = checkpoint.plan
    print(json.dumps({
        "growth": growth, "planned": plan.anonymous_bytes, "mapped": plan.mapped_bytes,
        "file": resident("RssFile"), "touched": touched, "line": str(plan),
    }))
"""


def load(directory: Path) -> dict[str, object]:
    """Open, map and copy everything in a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(directory)],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def sized_config(engram_vocab_size: int) -> dict[str, object]:
    """Two Engram tables dominate; every other kind is there too."""
    return tiny_config(
        engram_layer_ids=[0, 1],
        engram_vocab_size=engram_vocab_size,
        engram_head_dim=128,
        engram_n_heads=4,
        hidden_size=256,
        vocab_size=8192,
        moe_intermediate_size=256,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engram_vocab_size", "total"),
    [
        pytest.param(30_000, 100e6, id="100MB"),
        pytest.param(640_000, 2e9, id="2GB", marks=pytest.mark.soak),
    ],
)
def test_growth_stays_within_the_plan(tmp_path: Path, engram_vocab_size: int, total: float) -> None:
    write_checkpoint(tmp_path, sized_config(engram_vocab_size))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) > total
    result = load(tmp_path)
    growth, planned, mapped = result["growth"], result["planned"], result["mapped"]
    assert isinstance(growth, int)
    assert isinstance(planned, int)
    assert isinstance(mapped, int)
    assert growth <= planned + ALLOWANCE, result
    assert planned < total / 10 < mapped
    assert isinstance(result["file"], int)
    assert result["file"] > mapped * 0.9, result
