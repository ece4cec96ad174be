"""The timing model: its format is accepted, its numbers stay finite, its options act."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.bench.loading import random_tokens
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import EngineOptions, open_engine
from tests.engine.runs import whole
from tests.model.random_model import SMALL

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "make_timing_model.py"
WIDTHS = ("hidden_size", "num_attention_heads", "n_routed_experts", "moe_intermediate_size")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with the widths of `SMALL` under the name of its small size."""
    spec = importlib.util.spec_from_file_location("make_timing_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    common = {key: SMALL[key] for key in module.COMMON if key in SMALL}
    monkeypatch.setattr(module, "COMMON", module.COMMON | common | {"o_groups": 2})
    monkeypatch.setitem(module.SIZES, "small", {key: SMALL[key] for key in WIDTHS})
    return module


def test_checkpoint_runs_with_finite_logits(script: ModuleType, tmp_path: Path) -> None:
    assert script.main([str(tmp_path), "--size", "small"]) == 0
    with open_engine(
        tmp_path, select_backend(REFERENCE), EngineOptions(max_model_len=64)
    ) as engine:
        logits = whole(engine.runner, random_tokens(engine.runner, 20, 0))
    assert logits.isfinite().all()
    assert 0.1 < float(logits.std()) < 10


def test_options_change_the_model(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--size", "small", "--layers", "7", "--experts", "5", "--positions", "9000"]
    script.main([str(tmp_path / "a"), *arguments])
    script.main([str(tmp_path / "b"), *arguments, "--seed", "1"])
    with Checkpoint.open(tmp_path / "a", progress=False) as checkpoint:
        text = checkpoint.config.text
        assert (text.num_hidden_layers, text.n_routed_experts) == (7, 5)
        assert text.max_position_embeddings == 9000
        stored = sum(file.stat().st_size for file in checkpoint.directory.glob("*.safetensors"))
    shards = [tmp_path / name / "model-00002-of-00008.safetensors" for name in "ab"]
    assert shards[0].read_bytes() != shards[1].read_bytes()
    total = json.loads((tmp_path / "a/model.safetensors.index.json").read_text())["metadata"]
    assert 0 < total["total_size"] < stored
    assert "a decoded token reads" in capsys.readouterr().out


def test_schedule_has_both_ratios(script: ModuleType) -> None:
    assert script.schedule(8) == {
        "num_hidden_layers": 8,
        "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1],
        "kv_source_layer_ids": [2, 5],
        "index_source_layer_ids": [2, 5, 7],
        "candidate_source_layer_id": 5,
    }


def test_too_few_layers_are_refused(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script.main([str(tmp_path), "--layers", "5"])
    assert "--layers is 5; allowed: 6 or more" in capsys.readouterr().err
