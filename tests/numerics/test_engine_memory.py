"""Anonymous memory of a whole engine stays within the printed plan plus 64 MB.

Weights are the plan's; the cache pools are stated apart and added. In a process of its own, whose
RssAnon is sampled while the checkpoint is opened, packed and run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.numerics.checkpoints import small_config, write_filled

ALLOWANCE = 64_000_000

SCRIPT = """
import json, sys, threading
import torch
import deepinfer

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

before = highest = anonymous()
done = threading.Event()

def sample():
    global highest
    while not done.wait(0.005):
        highest = max(highest, anonymous())

watcher = threading.Thread(target=sample)
watcher.start()
from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.engine import EngineOptions, SamplingParams, open_engine

options = EngineOptions(max_model_len=256, max_num_batched_tokens=32)
with open_engine(sys.argv[1], select_backend(REFERENCE), options) as engine:
    loaded, peak_of_loading = anonymous(), max(highest, anonymous())
    runner, rows = engine.runner, []
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    keep = lambda sequence, first, logits: rows.append(logits[-1])
    engine.add(list(range(3, 43)), params, on_logits=keep)
    engine.drain()
    logits = rows[-1]
    done.set()
    watcher.join()
    plan = runner.checkpoint.plan
    experts = [layer.experts for layer in runner.backbone.weights.layers]
    print(json.dumps({
        "loaded": loaded - before,
        "peak_of_loading": peak_of_loading - before,
        "peak_of_running": max(highest, anonymous()) - before,
        "plan": plan.anonymous_bytes,
        "mapped": plan.mapped_bytes,
        "pools": runner.pools.nbytes,
        "expert_copies": sum(one.nbytes for one in experts),
        "finite": bool(logits.isfinite().all()) and bool((logits != 0).any()),
    }))
"""


def run(directory: Path) -> dict[str, Any]:
    """Load and run the checkpoint in a fresh process with one thread."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(directory)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "stored"),
    [
        pytest.param(
            {"hidden_size": 1024, "moe_intermediate_size": 512, "n_routed_experts": 16},
            100e6,
            id="100MB",
        ),
        pytest.param(
            {"hidden_size": 2048, "moe_intermediate_size": 1024, "n_routed_experts": 96},
            2e9,
            id="2GB",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_memory_of_an_engine(tmp_path: Path, sizes: dict[str, int], stored: float) -> None:
    config = small_config(
        **sizes,
        num_attention_heads=8,
        head_dim=128,
        q_lora_rank=256,
        o_lora_rank=256,
        num_experts_per_tok=6,
        engram_vocab_size=3000,
        engram_head_dim=128,
    )
    write_filled(tmp_path, config)
    result = run(tmp_path)
    print("\n" + ", ".join(f"{name} {value:,}" for name, value in result.items()))
    for path in tmp_path.iterdir():  # pytest keeps the directories of three runs
        path.unlink()
    assert result["mapped"] > stored
    assert result["finite"]
    assert result["expert_copies"] == 0
    assert result["plan"] < stored / 10
    allowed = result["plan"] + ALLOWANCE + result["pools"]
    assert result["loaded"] <= allowed, result
    assert result["peak_of_loading"] <= allowed, result
    assert result["peak_of_running"] <= allowed, result
