#!/usr/bin/env python3
"""Write a checkpoint for timing: `python bench/make_timing_model.py OUT [--size small|large]`.

The published byte format with every architectural part but drafts and vision, sizes whose weights
do not fit into a cache, and random weights from a seed. Its text is meaningless. Values keep about
unit size through the network, so that nothing overflows; nothing else about them is meant.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's deepinfer, whatever else is installed

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from deepinfer.checkpoint import ExpectedTensor, Kind, expected_tensors  # noqa: E402
from deepinfer.config import ModelConfig, engram_hashes  # noqa: E402
from deepinfer.data import ABOUT_NAME, bundled_checkpoint  # noqa: E402

COMMON = {
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 512,
    "o_groups": 4,
    "o_lora_rank": 512,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 8,
    "sliding_window": 128,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_block_size": 8,
    "candidate_topk_blocks": 2048,
    "swiglu_limit": 10.0,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 131072,
}
SIZES = {
    "small": {
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "n_routed_experts": 32,
        "moe_intermediate_size": 512,
    },
    "large": {
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "n_routed_experts": 64,
        "moe_intermediate_size": 1024,
    },
}
LEAST_LAYERS = 6
CODE_LOG2 = {Kind.FP8: 6.6, Kind.TABLE: 6.6, Kind.FP4: 1.5}  # root mean square of uniform codes
SCALE_BIAS = 127
NAN_CODE, FINITE_CODE = 0x7F, 0x10


def schedule(layers: int) -> dict[str, Any]:
    """Two window layers, then ratio 2 and ratio 1 in halves, each with one KV source."""
    middle = 2 + (layers - 2) // 2
    return {
        "num_hidden_layers": layers,
        "compress_ratios": [0, 0] + [2] * (middle - 2) + [1] * (layers - middle),
        "kv_source_layer_ids": [2, middle],
        "index_source_layer_ids": sorted({2, middle, layers - 1}),
        "candidate_source_layer_id": middle,
    }


def configuration(changes: dict[str, Any]) -> dict[str, Any]:
    """config.json, parsed: the bundled checkpoint's at other sizes, with its tokenizer."""
    config = json.loads((bundled_checkpoint() / "config.json").read_text())
    text = config["text_config"] | COMMON | changes
    text |= schedule(text["num_hidden_layers"])
    text["rope_scaling"] = text["rope_scaling"] | {"original_max_position_embeddings": 4096}
    hashes = engram_hashes(SimpleNamespace(**text))
    text["engram_num_embeddings"] = [hashes[layer].rows for layer in text["engram_layer_ids"]]
    return config | {"text_config": text}


def stored(item: ExpectedTensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """One value as published, with its scales where it has any."""
    if item.kind.quantised:
        return quantised(item, generator)
    dtype = torch.float32 if item.kind is Kind.FP32 else torch.bfloat16
    return {item.name: plain(item, generator).to(dtype).contiguous()}


def plain(item: ExpectedTensor, generator: torch.Generator) -> torch.Tensor:
    """Norms, gates and scales are one; biases and sinks zero; matrices keep their input's size."""
    if item.name.endswith((".bias", ".bias_vl", "attn_sink", "_base")):
        return torch.zeros(item.shape)
    if len(item.shape) == 1 or item.name.endswith(("engram.q_weight", "engram.k_weight")):
        return torch.ones(item.shape)
    values = torch.randn(item.shape, generator=generator)
    return values if item.name == "embed.weight" else values * item.shape[1] ** -0.5


def quantised(item: ExpectedTensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Random codes, and one scale that brings the product back to the size of its input."""
    codes = torch.randint(0, 256, item.code_shape, dtype=torch.uint8, generator=generator)
    if item.kind is Kind.FP4:
        published = codes.view(torch.int8)
    else:
        codes[(codes & NAN_CODE) == NAN_CODE] = FINITE_CODE
        published = codes.view(torch.float8_e4m3fn)
    growth = 0 if item.kind is Kind.TABLE else torch.tensor(item.shape[1]).log2().item() / 2
    exponent = SCALE_BIAS - round(CODE_LOG2[item.kind] + growth)
    scales = torch.full(item.scale_shape, exponent, dtype=torch.uint8)
    return {item.name: published, item.scale_name: scales.view(torch.float8_e8m0fnu)}


def write(out: Path, config: dict[str, Any], seed: int) -> int:
    """Write every file, one shard per layer; bytes of all tensors."""
    out.mkdir(parents=True, exist_ok=True)
    units: dict[int, list[ExpectedTensor]] = {}
    for item in expected_tensors(ModelConfig.from_dict(config)):
        units.setdefault(item.layer, []).append(item)
    generator = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    total = 0
    for number, items in enumerate(units.values(), 1):
        name = f"model-{number:05d}-of-{len(units):05d}.safetensors"
        tensors: dict[str, torch.Tensor] = {}
        for item in items:
            tensors |= stored(item, generator)
        save_file(tensors, out / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled_checkpoint() / name, out)
    about = {"weights": "random", "text": "meaningless", "made_by": Path(__file__).name}
    for name, content in (
        ("config.json", config),
        (ABOUT_NAME, about | {"seed": seed}),
        (
            "model.safetensors.index.json",
            {"metadata": {"total_size": total}, "weight_map": weight_map},
        ),
    ):
        (out / name).write_text(json.dumps(content, indent=1) + "\n")
    return total


def read_per_token(config: dict[str, Any]) -> int:
    """Bytes of weights that a decoded token reads: all but idle experts and embedding tables."""
    text = config["text_config"]
    share = text["num_experts_per_tok"] / text["n_routed_experts"]
    sizes = {"FP8": 1, "FP4": 0.5, "BF16": 2, "FP32": 4}
    total = 0.0
    for item in expected_tensors(ModelConfig.from_dict(config)):
        if item.kind is Kind.TABLE or item.name == "embed.weight":
            continue
        nbytes = item.parameters * sizes[item.kind.name]
        if item.kind.quantised:
            nbytes += item.scale_shape[0] * item.scale_shape[1]
        total += nbytes * (share if ".experts." in item.name else 1)
    return int(total)


def main(arguments: list[str] | None = None) -> int:
    """Write the checkpoint; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory to write to")
    parser.add_argument("--size", choices=SIZES, default="large", help="default: large, 2 GB")
    parser.add_argument("--layers", type=int, help=f"{LEAST_LAYERS} or more (default: 8)")
    parser.add_argument("--experts", type=int, help="routed experts per layer")
    parser.add_argument("--positions", type=int, help="max_position_embeddings (default: 131072)")
    parser.add_argument("--seed", type=int, default=0, help="other weights (default: 0)")
    options = parser.parse_args(arguments)
    if options.layers is not None and options.layers < LEAST_LAYERS:
        parser.error(f"--layers is {options.layers}; allowed: {LEAST_LAYERS} or more")
    changes: dict[str, Any] = dict(SIZES[options.size])
    for key, value in (
        ("num_hidden_layers", options.layers),
        ("n_routed_experts", options.experts),
        ("max_position_embeddings", options.positions),
    ):
        if value is not None:
            changes[key] = value
    config = configuration(changes)
    total = write(options.out, config, options.seed)
    print(
        f"{options.out}: {total / 1e6:.1f} MB, of which a decoded token reads "
        f"{read_per_token(config) / 1e6:.1f} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
