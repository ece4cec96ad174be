"""The checkpoint in the package: reproducible, small, complete, accepted by the loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deepinfer.checkpoint import Checkpoint
from deepinfer.config import ModelConfig, release_limits
from deepinfer.data import About, about, bundled_checkpoint, nano_checkpoint
from deepinfer.text import Tokenizer, compressed_token_map
from deepinfer.text.tokenizer import IMAGE_SPELLINGS

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = bundled_checkpoint()
MAX_BYTES = 8_000_000

SPELLINGS = {  # model specification, section 12; the image placeholder is looked at apart
    "<｜begin▁of▁sentence｜>": 0,
    "<｜end▁of▁sentence｜>": 1,
    "<｜▁pad▁｜>": 2,
}
SPELLINGS_OF_ANY_ID = [
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    *(f"<｜{slash}{name}｜>" for name in ("ref", "box", "point", "polygon") for slash in ("", "/")),
]


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_file(DIRECTORY)


@pytest.fixture(scope="module")
def tokenizer(config: ModelConfig) -> Tokenizer:
    return Tokenizer.from_directory(DIRECTORY, config)


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[Checkpoint]:
    with Checkpoint.open(DIRECTORY, components=("text", "draft"), progress=False) as opened:
        yield opened


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script, with another hash seed than this process has."""
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_checkpoint.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "12345"},
    )


@pytest.mark.slow
def test_script_makes_the_same_bytes() -> None:
    result = make("--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_check_names_what_differs() -> None:
    result = make("--check", "--seed", "1")
    assert result.returncode == 1, result.stderr
    shards = sorted(path.name for path in DIRECTORY.glob("*.safetensors"))
    differing = sorted(line.split(":")[0] for line in result.stdout.splitlines())
    assert differing == ["about.json", *shards]


@pytest.mark.slow
def test_script_writes_a_checkpoint(tmp_path: Path, checkpoint: Checkpoint) -> None:
    result = make(str(tmp_path / "made"))
    assert result.returncode == 0, result.stderr
    with Checkpoint.open(tmp_path / "made", progress=False) as made:
        assert sorted(made.names()) == sorted(checkpoint.names())


def test_size() -> None:
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) <= MAX_BYTES


def test_package_data_patterns_take_every_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["deepinfer"]
    package = DIRECTORY.parents[1]
    taken = {path for pattern in patterns for path in package.glob(pattern)}
    assert set(DIRECTORY.iterdir()) <= taken


def test_index_states_shards_and_total(checkpoint: Checkpoint) -> None:
    index = json.loads((DIRECTORY / "model.safetensors.index.json").read_text(encoding="utf-8"))
    stored = {name: checkpoint.source(name) for name in checkpoint.names()}
    assert index["metadata"] == {"total_size": sum(source.nbytes for source in stored.values())}
    assert index["weight_map"] == {name: Path(s.file).name for name, s in stored.items()}
    assert checkpoint.shard_count == 3


def test_every_tensor_is_aligned(checkpoint: Checkpoint) -> None:
    assert [name for name in checkpoint.names() if not checkpoint.source(name).aligned] == []


def test_every_published_dtype_occurs(checkpoint: Checkpoint) -> None:
    dtypes = {checkpoint.stored_dtype(name) for name in checkpoint.names()}
    assert dtypes == {"I8", "F8_E4M3", "F8_E8M0", "BF16", "F32"}


def test_engram_table_lies_beside_its_scales(checkpoint: Checkpoint) -> None:
    for layer in checkpoint.config.text.engram_layer_ids:
        table = checkpoint.linear(f"layers.{layer}.engram.embed")
        assert table.scale is not None
        assert table.weight.file == table.scale.file


def test_every_layer_role_occurs(config: ModelConfig) -> None:
    roles = {(layer.ratio, layer.role) for layer in config.text.layers}
    selecting = {(r, role) for r in (1, 2) for role in ("full", "reindex", "reuse")}
    assert roles == {(0, "window")} | selecting


def test_candidate_selection_is_on(config: ModelConfig) -> None:
    layers = config.text.layers
    assert [layer.role for layer in layers if layer.candidate_source] == ["full"]
    assert any(layer.uses_candidates and layer.role == "reindex" for layer in layers)


def test_every_other_part_is_on(config: ModelConfig) -> None:
    text = config.text
    assert sum(layer.engram for layer in text.layers) == 2
    assert text.hc_mult == 4
    assert text.rope_scaling is not None
    assert text.n_routed_experts >= 8
    assert text.n_shared_experts == 1
    assert (text.draft_layers, text.dspark_block_size) == (3, 5)
    assert text.dspark_n_routed_experts != text.n_routed_experts
    assert config.quantization is not None
    assert not config.vision.enabled


def test_no_release_limit_is_left(config: ModelConfig) -> None:
    assert release_limits(config) == []
    assert config.unknown_keys == ()


def test_every_spelling_is_one_token(tokenizer: Tokenizer) -> None:
    assert {spelling: tokenizer.token_id(spelling) for spelling in SPELLINGS} == SPELLINGS
    for spelling in SPELLINGS_OF_ANY_ID:
        assert tokenizer.encode_with_control(spelling) == [tokenizer.token_id(spelling)]


def test_config_names_image_and_noise_tokens(config: ModelConfig, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([config.image_token_id], skip_special=False) in IMAGE_SPELLINGS
    noise = tokenizer.decode([config.text.dspark_noise_token_id], skip_special=False)
    assert noise in tokenizer.added_tokens
    assert noise not in {*SPELLINGS, *SPELLINGS_OF_ANY_ID, *IMAGE_SPELLINGS}


def test_every_id_has_a_token(config: ModelConfig, tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == config.text.vocab_size
    assert all(tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size))


def test_compressed_vocabulary_has_the_stated_size(config: ModelConfig) -> None:
    text = config.text
    folded = compressed_token_map(DIRECTORY / "tokenizer.json", text.vocab_size)
    assert int(folded.max()) + 1 == text.engram_compressed_vocab_size < text.vocab_size


@pytest.mark.parametrize(
    "text",
    [
        "Hello! How are you?",
        "def f(x):\n    return x  # 1234",
        "你好、こん 😀 été",
        "\r\n\t\0",
    ],
)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sinks_have_both_signs(checkpoint: Checkpoint, config: ModelConfig) -> None:
    for layer in range(config.text.num_hidden_layers):
        sink = checkpoint.source(f"layers.{layer}.attn.attn_sink").read()
        assert (sink > 0).any()
        assert (sink < 0).any()


def test_router_biases_are_distinct(checkpoint: Checkpoint, config: ModelConfig) -> None:
    for layer in range(config.text.num_hidden_layers):
        biases = [
            checkpoint.source(f"layers.{layer}.ffn.gate.{name}").read()
            for name in ("bias", "bias_vl")
        ]
        assert torch.cat(biases).unique().numel() == 2 * config.text.n_routed_experts


def test_fp32_tensors_need_fp32(checkpoint: Checkpoint) -> None:
    """A loader that rounds them to bfloat16 changes the model."""
    mixes = checkpoint.source("layers.0.hc_attn_fn").read()
    assert not torch.equal(mixes, mixes.bfloat16().float())


def test_bundled_checkpoint_says_that_it_is_random(tmp_path: Path) -> None:
    assert about(DIRECTORY) == About(is_random=True)
    assert about(tmp_path) == About()


def test_the_trained_checkpoint_says_what_on() -> None:
    found = about(nano_checkpoint())
    assert not found.is_random
    assert "stories" in found.text


@pytest.mark.parametrize(
    "said",
    [
        "",
        "[]",
        '"random"',
        '{"weights": "trained"}',
        '{"weights": "trained", "text": 1}',
        "{}",
        '{"weights": "trained", "text": "a\\u001b[2J"}',
        '{"weights": "trained", "text": "' + "a" * 201 + '"}',
    ],
)
def test_other_statements_say_nothing(tmp_path: Path, said: str) -> None:
    (tmp_path / "about.json").write_text(said, encoding="utf-8")
    assert about(tmp_path) == About()


def test_a_statement_that_is_no_small_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "about.json")  # which would be waited for
    assert about(tmp_path) == About()
    (tmp_path / "about.json").unlink()
    said = '{"weights": "random"}'
    (tmp_path / "about.json").write_text(said + " " * (2**16 - len(said)))
    assert about(tmp_path) == About(is_random=True)
    with (tmp_path / "about.json").open("a") as file:
        file.write(" ")
    assert about(tmp_path) == About()
