"""Small valid checkpoints for tests: a tiny configuration, and shards written byte by byte."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from deepinfer.checkpoint import expected_tensors
from deepinfer.config import ModelConfig
from deepinfer.config.engram import engram_primes
from tests.config.released import released_config

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
PIECE = bytes(np.random.default_rng(0).integers(0, 100, size=1 << 20, dtype=np.uint8))

TINY_TEXT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "o_groups": 2,
    "max_position_embeddings": 4096,
    "sliding_window": 16,
    "compress_ratios": [0, 2, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 2],
    "index_source_layer_ids": [1, 2, 3],
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 16,
    "candidate_source_layer_id": 2,
    "candidate_topk_blocks": 8,
    "candidate_block_size": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "engram_layer_ids": [1],
    "engram_vocab_size": 50,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_compressed_vocab_size": 60,
    "num_nextn_predict_layers": 2,
    "dspark_block_size": 3,
    "dspark_noise_token_id": 95,
    "dspark_target_layer_ids": [2, 3],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 2,
    "dspark_num_experts_per_tok": 1,
}


def tiny_config(**text: Any) -> dict[str, Any]:
    """A config.json of a few hundred kilobytes of weights with all components; keys to change."""
    config = released_config()
    config["image_token_id"] = 94
    merged = {**TINY_TEXT, **text}
    layers = merged["engram_layer_ids"]
    primes: dict[int, int] = defaultdict(int)
    settings = {**config["text_config"], **merged}
    for layer, prime in engram_primes(SimpleNamespace(**settings)):
        primes[layer] += prime
    merged["engram_num_embeddings"] = [primes[layer] for layer in layers]
    config["text_config"] |= merged
    config["vision_config"] |= {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "patch_size": 2,
    }
    return config


Stored = tuple[str, str, tuple[int, ...]]  # name, safetensors dtype, stored shape


def stored_tensors(config: ModelConfig) -> list[Stored]:
    """Every stored tensor of a configuration, scales included, in the published dtypes."""
    result: list[Stored] = []
    for item in expected_tensors(config):
        if item.kind.quantised and config.quantization is None:
            result.append((item.name, "BF16", item.shape))
            continue
        result.append((item.name, item.kind.code_dtype, item.code_shape))
        if item.kind.quantised:
            result.append((item.scale_name, "F8_E8M0", item.scale_shape))
    return result


def stored_bytes(tensor: Stored) -> int:
    """Bytes of one stored tensor."""
    return math.prod(tensor[2]) * ITEM_BYTES.get(tensor[1], 1)


def shard_header(tensors: Iterable[Stored]) -> bytes:
    """Length and JSON of a shard, padded to 8 bytes."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + stored_bytes((name, dtype, shape))
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return framed(table)


def framed(table: Any) -> bytes:
    """A header table with its length in front, padded with spaces to a multiple of 8."""
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_shard(path: Path, tensors: Sequence[Stored], *, sparse: bool = False) -> None:
    """A shard with arbitrary bytes as data, or with none at all (a sparse file of full length)."""
    data_bytes = sum(map(stored_bytes, tensors))
    with open(path, "wb") as file:
        file.write(shard_header(tensors))
        if sparse:
            os.truncate(file.fileno(), file.tell() + data_bytes)
            return
        while data_bytes > 0:
            data_bytes -= file.write(PIECE[:data_bytes])


def write_index(directory: Path, shards: Mapping[str, Sequence[Stored]]) -> None:
    """model.safetensors.index.json over named shards."""
    total = sum(stored_bytes(tensor) for tensors in shards.values() for tensor in tensors)
    weight_map = {tensor[0]: name for name, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def split(tensors: Sequence[Stored], count: int) -> dict[str, list[Stored]]:
    """Named shards of about equally many tensors, wide items first as the usual writers do."""
    step = -(-len(tensors) // count)
    return {
        f"model-{number + 1:05}-of-{count:05}.safetensors": sorted(
            tensors[number * step : (number + 1) * step],
            key=lambda tensor: -ITEM_BYTES.get(tensor[1], 1),
        )
        for number in range(count)
    }


def write_checkpoint(
    directory: Path, config: dict[str, Any], *, shards: int = 3, sparse: bool = False
) -> dict[str, list[Stored]]:
    """Write a valid checkpoint and return what is in which shard."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    placed = split(stored_tensors(ModelConfig.from_dict(config)), shards)
    for name, tensors in placed.items():
        write_shard(directory / name, tensors, sparse=sparse)
    write_index(directory, placed)
    return placed
