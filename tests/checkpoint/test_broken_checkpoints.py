"""A corpus of broken indexes and shards, each with its own error, before any weight is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.checkpoint import Checkpoint
from deepinfer.errors import (
    CheckpointError,
    CheckpointIndexError,
    ConfigError,
    MissingScaleError,
    MissingShardError,
    MissingTensorError,
    TensorMismatchError,
    TruncatedShardError,
    UnexpectedTensorError,
)
from tests.checkpoint.broken import INDEX, CheckpointFiles
from tests.checkpoint.writer import tiny_config, write_checkpoint, write_shard

EXPERT = "layers.0.ffn.experts.3.w2"
EXTRA = ("layers.0.attn.wq_c.weight", "BF16", (4,))


def short_by_one_byte(files: CheckpointFiles) -> None:
    path = files.shard_of("norm.weight")
    os.truncate(path, path.stat().st_size - 1)


def long_by_one_byte(files: CheckpointFiles) -> None:
    path = files.shard_of("norm.weight")
    os.truncate(path, path.stat().st_size + 1)


def index_with(name: str, shard: object) -> Callable[[CheckpointFiles], None]:
    def change(files: CheckpointFiles) -> None:
        index = files.index()
        index["weight_map"][name] = shard
        files.write_index(index)

    return change


def count_in_the_config(**counts: int) -> Callable[[CheckpointFiles], None]:
    def change(files: CheckpointFiles) -> None:
        path = files.directory / "config.json"
        config = json.loads(path.read_text())
        config["text_config"] |= counts
        path.write_text(json.dumps(config))

    return change


def moved_in_the_index(files: CheckpointFiles) -> None:
    other = next(n for n in files.shards() if n != files.shard_of("norm.weight").name)
    index_with("norm.weight", other)(files)


def in_two_shards(files: CheckpointFiles) -> None:
    last = list(files.shards())[-1]
    other = next(t[0] for t in files.shards()[last])
    files.add(("norm.weight", "BF16", (64,)), beside=other, index=False)


def prefix_twice(files: CheckpointFiles) -> None:
    files.add(("model.norm.weight", "BF16", (64,)))


CASES: dict[str, tuple[Callable[[CheckpointFiles], object], type[CheckpointError], str]] = {
    "tensor of no component": (
        lambda f: f.add(EXTRA),
        UnexpectedTensorError,
        "no component .* 1 tensor: layers.0.attn.wq_c.weight",
    ),
    "far more experts than there are": (
        count_in_the_config(n_routed_experts=2**40),
        MissingTensorError,
        "requires more than .* tensors and the shards hold",
    ),
    "far more draft experts than there are": (
        count_in_the_config(dspark_n_routed_experts=2**40),
        MissingTensorError,
        "requires more than .* tensors and the shards hold",
    ),
    "shard name too long for the system": (
        index_with("norm.weight", "x" * 5000 + ".safetensors"),
        MissingShardError,
        "^.{0,400}$",
    ),
    "layer beyond the last": (
        lambda f: f.add(("layers.4.attn_norm.weight", "BF16", (64,))),
        UnexpectedTensorError,
        "layers.4.attn_norm.weight",
    ),
    "expert beyond the last": (
        lambda f: f.add(("mtp.0.ffn.experts.2.w1.weight", "I8", (32, 32))),
        UnexpectedTensorError,
        "mtp.0.ffn.experts.2.w1.weight",
    ),
    "scale of an unquantised tensor": (
        lambda f: f.add(("norm.scale", "F8_E8M0", (2,))),
        UnexpectedTensorError,
        "norm.scale",
    ),
    "missing text tensor": (
        lambda f: f.drop("layers.2.ffn.gate.bias_vl"),
        MissingTensorError,
        "1 tensor: layers.2.ffn.gate.bias_vl",
    ),
    "missing draft tensor": (
        lambda f: f.drop("mtp.1.markov_head.head.weight"),
        MissingTensorError,
        "mtp.1.markov_head.head.weight",
    ),
    "missing vision tensor": (
        lambda f: f.drop("image_newline"),
        MissingTensorError,
        "image_newline",
    ),
    "weight and scale missing": (
        lambda f: f.drop(f"{EXPERT}.weight", f"{EXPERT}.scale"),
        MissingTensorError,
        f"1 tensor: {EXPERT}.weight",
    ),
    "missing FP8 scale": (
        lambda f: f.drop("layers.0.attn.wkv.scale"),
        MissingScaleError,
        "without a .scale .* 1 tensor: layers.0.attn.wkv.weight",
    ),
    "missing FP4 scale": (
        lambda f: f.drop(f"{EXPERT}.scale"),
        MissingScaleError,
        f"without a .scale .* {EXPERT}.weight",
    ),
    "missing table scale": (
        lambda f: f.drop("layers.1.engram.embed.scale"),
        MissingScaleError,
        "layers.1.engram.embed.weight",
    ),
    "scale without weight": (
        lambda f: f.drop(f"{EXPERT}.weight"),
        MissingScaleError,
        f"without a quantised .weight: 1 tensor: {EXPERT}.scale",
    ),
    "wrong dtype": (
        lambda f: f.replace("norm.weight", "F16", (64,)),
        TensorMismatchError,
        r"norm.weight \(is F16 \[64\], must be BF16 or F32 \[64\]\)",
    ),
    "bf16 where codes must be": (
        lambda f: f.replace("layers.0.attn.wkv.weight", "BF16", (32, 64)),
        TensorMismatchError,
        r"is BF16 \[32, 64\], must be F8_E4M3 \[32, 64\]",
    ),
    "fp16 sink": (
        lambda f: f.replace("layers.0.attn.attn_sink", "F16", (2,)),
        TensorMismatchError,
        "must be BF16 or F32",
    ),
    "scale of another dtype": (
        lambda f: f.replace("layers.0.attn.wkv.scale", "F32", (1, 2)),
        TensorMismatchError,
        "layers.0.attn.wkv.scale .* must be F8_E8M0",
    ),
    "wrong shape": (
        lambda f: f.replace("embed.weight", "BF16", (64, 96)),
        TensorMismatchError,
        r"is BF16 \[64, 96\], must be BF16 or F32 \[96, 64\]",
    ),
    "unpacked FP4": (
        lambda f: f.replace(f"{EXPERT}.weight", "I8", (64, 32)),
        TensorMismatchError,
        r"must be I8 \[64, 16\]",
    ),
    "scale grid of another block": (
        lambda f: f.replace("layers.0.attn.wkv.scale", "F8_E8M0", (1, 1)),
        TensorMismatchError,
        r"must be F8_E8M0 \[1, 2\]",
    ),
    "missing shard": (
        lambda f: f.shard_of("norm.weight").unlink(),
        MissingShardError,
        "1 of 3 shards are missing: model-0000",
    ),
    "shard short by one byte": (short_by_one_byte, TruncatedShardError, "1 too short"),
    "shard long by one byte": (long_by_one_byte, TruncatedShardError, "1 too long"),
    "in a shard, not in the index": (
        lambda f: f.add(EXTRA, index=False),
        CheckpointIndexError,
        "in a shard but absent from the index: 1 tensor: layers.0.attn.wq_c",
    ),
    "in the index, not in its shard": (
        lambda f: f.drop("norm.weight", index=False),
        CheckpointIndexError,
        "in the index but not in the shard that it names: 1 tensor: norm.weight",
    ),
    "in another shard than the index says": (
        moved_in_the_index,
        CheckpointIndexError,
        "not in the shard that it names: 1 tensor: norm.weight",
    ),
    "in two shards": (in_two_shards, CheckpointIndexError, "in two shards.*: norm.weight"),
    "with and without prefix": (prefix_twice, CheckpointIndexError, "1 tensor: norm.weight"),
    "index leaves the directory": (
        index_with("norm.weight", "../model.safetensors"),
        CheckpointIndexError,
        "leaves the directory",
    ),
    "index leaves it further inside": (
        index_with("norm.weight", "a/../../model.safetensors"),
        CheckpointIndexError,
        "leaves the directory",
    ),
    "index names an absolute path": (
        index_with("norm.weight", "/etc/model.safetensors"),
        CheckpointIndexError,
        "leaves the directory",
    ),
    "index names no string": (index_with("norm.weight", 3), CheckpointIndexError, "norm.weight"),
    "index names another kind of file": (
        index_with("norm.weight", "config.json"),
        CheckpointIndexError,
        "ending in .safetensors",
    ),
    "index is not JSON": (
        lambda f: (f.directory / INDEX).write_text("{"),
        CheckpointIndexError,
        "broken JSON",
    ),
    "index is nested deeply": (
        lambda f: (f.directory / INDEX).write_text("[" * 200_000),
        CheckpointIndexError,
        "nested too deeply",
    ),
    "index names a tensor twice": (
        lambda f: (f.directory / INDEX).write_text('{"weight_map": {"a": "b", "a": "c"}}'),
        CheckpointIndexError,
        "twice",
    ),
    "index without weight_map": (lambda f: f.write_index({}), CheckpointIndexError, "weight_map"),
    "index with an empty weight_map": (
        lambda f: f.write_index({"weight_map": {}}),
        CheckpointIndexError,
        "weight_map",
    ),
    "no index and no shard": (
        lambda f: (f.directory / INDEX).unlink(),
        MissingShardError,
        "found neither",
    ),
    "no config.json": (
        lambda f: (f.directory / "config.json").unlink(),
        ConfigError,
        "config.json",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_defect_has_its_error(files: CheckpointFiles, case: str) -> None:
    damage, error, message = CASES[case]
    damage(files)
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint.open(files.directory)
    assert caught.type is error
    assert str(files.directory) in str(caught.value)


def test_a_message_lists_five_names_and_the_count(files: CheckpointFiles) -> None:
    names = [f"layers.{i}.{n}.weight" for i in range(4) for n in ("attn_norm", "ffn_norm")]
    files.drop(*names)
    with pytest.raises(MissingTensorError) as caught:
        Checkpoint.open(files.directory)
    message = str(caught.value)
    assert "8 tensors" in message
    assert "and 3 more" in message
    assert sum(name in message for name in names) == 5


def test_a_wrong_total_size_is_a_warning_that_names_both_sizes(files: CheckpointFiles) -> None:
    index = files.index()
    index["metadata"]["total_size"] = 17
    files.write_index(index)
    with pytest.warns(UserWarning, match="take 17 bytes"), Checkpoint.open(files.directory):
        pass


def test_a_shard_that_the_index_does_not_name_is_a_warning(files: CheckpointFiles) -> None:
    write_shard(files.directory / "old.safetensors", [EXTRA])
    with pytest.warns(UserWarning, match="not read: old.safetensors"):
        Checkpoint.open(files.directory).close()


def test_the_model_prefix_is_stripped(files: CheckpointFiles) -> None:
    files.rewrite(lambda t: [(f"model.{t[0]}", *t[1:])] if t[0] != "head.weight" else [t])
    with Checkpoint.open(files.directory) as checkpoint:
        assert checkpoint.has("norm.weight")
        assert checkpoint.has("head.weight")
        assert checkpoint.source("norm.weight").name == "norm.weight"
        assert not checkpoint.has("model.norm.weight")


def test_files_may_be_symbolic_links(files: CheckpointFiles, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    for path in files.directory.iterdir():
        (links / path.name).symlink_to(path)
    with Checkpoint.open(links) as checkpoint:
        assert checkpoint.source("norm.weight").read().shape == (64,)


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    (name,) = write_checkpoint(tmp_path, tiny_config(), shards=1)
    shutil.move(tmp_path / name, tmp_path / "model.safetensors")
    (tmp_path / INDEX).unlink()
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.shard_count == 1


def test_fp32_is_accepted_for_an_unquantised_tensor(files: CheckpointFiles) -> None:
    files.replace("layers.1.attn.compressor.wkv.weight", "F32", (32, 64))
    with Checkpoint.open(files.directory) as checkpoint:
        assert checkpoint.linear("layers.1.attn.compressor.wkv").kind == "fp32"


def test_bf16_is_accepted_for_a_value_published_in_fp32(files: CheckpointFiles) -> None:
    files.replace("layers.0.attn.attn_sink", "BF16", (2,))
    with Checkpoint.open(files.directory) as checkpoint:
        assert checkpoint.source("layers.0.attn.attn_sink").dtype == "BF16"


def without_quantization(files: CheckpointFiles) -> None:
    config = json.loads((files.directory / "config.json").read_text())
    del config["quantization_config"]
    (files.directory / "config.json").write_text(json.dumps(config))


def test_without_quantization_config_the_stored_dtype_decides(files: CheckpointFiles) -> None:
    without_quantization(files)
    plain = {"layers.0.attn.wkv": (32, 64), EXPERT: (64, 32)}

    def change(tensor: tuple[str, str, tuple[int, ...]]) -> list[tuple[str, str, tuple[int, ...]]]:
        prefix, _, kind = tensor[0].rpartition(".")
        if prefix not in plain:
            return [tensor]
        return [(tensor[0], "BF16", plain[prefix])] if kind == "weight" else []

    files.rewrite(change)
    with Checkpoint.open(files.directory) as checkpoint:
        assert checkpoint.linear("layers.0.attn.wkv").kind == "bf16"
        assert checkpoint.linear("layers.0.attn.wkv").scale is None
        assert checkpoint.linear(EXPERT).shape == (64, 32)
        assert checkpoint.linear("layers.1.attn.wkv").kind == "fp8"


def test_a_bf16_weight_must_not_have_scales(files: CheckpointFiles) -> None:
    without_quantization(files)
    files.replace("layers.0.attn.wkv.weight", "BF16", (32, 64))
    with pytest.raises(MissingScaleError, match=r"without a quantised .weight.*wkv.scale"):
        Checkpoint.open(files.directory)
