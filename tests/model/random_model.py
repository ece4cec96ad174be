"""Random checkpoints of any schedule, in the published byte format, small enough for a test.

`SMALL` has every architectural part at widths that make a step cheap, and edges that come soon:
windows of 8 tokens, 8 selected entries, candidates that restrict from 12 entries on.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.append(str(SCRIPTS))  # the generator of the bundled checkpoint is a script

from bundled_checkpoint.configuration import build_configuration  # noqa: E402
from bundled_checkpoint.shards import shard_files  # noqa: E402
from bundled_checkpoint.vocabulary import Vocabulary, build_vocabulary  # noqa: E402
from bundled_checkpoint.weights import build_tensors  # noqa: E402

from deepinfer.config import ModelConfig, engram_hashes  # noqa: E402
from deepinfer.text import compressed_token_map  # noqa: E402

VOCABULARY = 320

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "max_position_embeddings": 4096,
    "sliding_window": 8,
    # window; ratio 2: full, reindex; ratio 1: full and candidate source, reindex, reuse
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 2, 3, 4],
    "index_n_heads": 4,
    "index_topk": 8,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 3,
    "candidate_block_size": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "hc_sinkhorn_iters": 4,
    "engram_layer_ids": [1, 3],
    "engram_vocab_size": 50,
    "engram_head_dim": 32,
    "num_nextn_predict_layers": 0,
}


@cache
def _vocabulary() -> Vocabulary:
    return build_vocabulary(VOCABULARY)


def random_config(directory: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """config.json, parsed: `SMALL` with changes; the tokenizer must be in the directory."""
    compressed = int(compressed_token_map(directory / "tokenizer.json", VOCABULARY).max()) + 1
    config = build_configuration(_vocabulary(), compressed)
    text = {**config["text_config"], **SMALL, **changes}
    hashes = engram_hashes(SimpleNamespace(**text))
    text["engram_num_embeddings"] = [hashes[layer].rows for layer in text["engram_layer_ids"]]
    return {**config, "text_config": text}


def write_random_model(directory: Path, changes: dict[str, Any], seed: int = 0) -> Path:
    """Write a checkpoint of `SMALL` with changes to its text configuration; returns its place."""
    directory.mkdir(parents=True, exist_ok=True)
    tokens = _vocabulary()
    for name, data in tokens.files().items():
        (directory / name).write_bytes(data)
    config = random_config(directory, changes)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = list(build_tensors(ModelConfig.from_dict(config), tokens, seed))
    for name, data in shard_files(tensors, 1).items():
        (directory / name).write_bytes(data)
    return directory
