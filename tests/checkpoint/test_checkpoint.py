"""Opening: components, access by name, golden checkpoints, closing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deepinfer.checkpoint import Checkpoint, Component
from deepinfer.errors import CheckpointError, MissingTensorError, UsageError
from tests.checkpoint.writer import tiny_config, write_checkpoint


def test_only_components_in_use_can_be_read(tiny_checkpoint: Path) -> None:
    with Checkpoint.open(tiny_checkpoint, ("text", "vision")) as checkpoint:
        assert checkpoint.components == (Component.TEXT, Component.VISION)
        assert checkpoint.source("image_start").shape == (64,)
        assert checkpoint.has("mtp.0.main_proj.weight")
        with pytest.raises(UsageError, match="component 'draft', which is not in use"):
            checkpoint.source("mtp.0.main_proj.weight")


@pytest.mark.parametrize("asked", [("txt",), ("text", "audio"), ()])
def test_unknown_components_are_named(tiny_checkpoint: Path, asked: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="this checkpoint has text, draft, vision"):
        Checkpoint.open(tiny_checkpoint, asked)


def test_a_component_that_the_configuration_lacks(tmp_path: Path) -> None:
    config = tiny_config(num_nextn_predict_layers=0, compress_ratios=[0, 2, 1, 1])
    write_checkpoint(tmp_path, config)
    with pytest.raises(UsageError, match="asked for draft; this checkpoint has text, vision"):
        Checkpoint.open(tmp_path, ("text", "draft"))


def test_linear_and_expert_pair_weights_with_scales(tiny_checkpoint: Path) -> None:
    with Checkpoint.open(tiny_checkpoint) as checkpoint:
        attention = checkpoint.linear("layers.0.attn.wkv")
        assert (attention.kind, attention.shape) == ("fp8", (32, 64))
        assert attention.scale is not None
        assert attention.scale.shape == (1, 2)
        expert = checkpoint.expert("layers.0.ffn.experts.3")
        assert (expert.w2.kind, expert.w2.shape) == ("fp4", (64, 32))
        table = checkpoint.linear("layers.1.engram.embed")
        assert table.scale is not None
        assert table.scale.shape == (table.shape[0], 1)
        assert checkpoint.linear("head").scale is None


def test_an_unknown_name(tiny_checkpoint: Path) -> None:
    with (
        Checkpoint.open(tiny_checkpoint) as checkpoint,
        pytest.raises(MissingTensorError, match=r"no tensor 'norm.bias'"),
    ):
        checkpoint.source("norm.bias")


def test_a_closed_checkpoint_reads_nothing(tiny_checkpoint: Path) -> None:
    with Checkpoint.open(tiny_checkpoint) as checkpoint:
        source = checkpoint.source("norm.weight")
    with pytest.raises(CheckpointError, match="closed"):
        source.map()


def golden_checkpoints() -> list[Path]:
    return sorted(Path(os.environ["DEEPINFER_GOLDEN_DIR"]).glob("*/checkpoint"))


@pytest.mark.parametrize("directory", golden_checkpoints(), ids=lambda path: path.parent.name)
def test_golden_checkpoints_open(directory: Path) -> None:
    with Checkpoint.open(directory, None) as checkpoint:
        for stored in checkpoint.names():
            assert checkpoint.source(stored).map().shape == checkpoint.source(stored).shape
