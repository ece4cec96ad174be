"""scripts/break_checkpoint.py: what it breaks, and that it leaves the rest alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepinfer.checkpoint import Checkpoint
from deepinfer.data import nano_checkpoint

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "break_checkpoint.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "name", "zero"),
    [
        ("sinks", "layers.3.attn.attn_sink", True),
        ("indexers", "layers.5.attn.indexer.wq_b.weight", False),
    ],
)
def test_one_part_is_broken(tmp_path: Path, part: str, name: str, zero: bool) -> None:
    out = tmp_path / "broken"
    done = subprocess.run([sys.executable, SCRIPT, part, out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert name in done.stdout, done.stderr
    with Checkpoint.open(nano_checkpoint()) as whole, Checkpoint.open(out) as other:
        before, after = (one.source(name).read() for one in (whole, other))
        assert before.dtype == after.dtype
        assert not torch.equal(before, after)
        assert bool((after.float() == 0).all()) == zero
        kept = "layers.3.attn.wkv.weight"
        assert torch.equal(whole.source(kept).read(), other.source(kept).read())
