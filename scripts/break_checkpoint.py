#!/usr/bin/env python3
"""Break one part of a checkpoint: `python scripts/break_checkpoint.py PART OUT [--model DIR]`.

OUT is a copy whose tensors of the part are zero, or, for indexers, shuffled. What an evaluation
says of it shows whether it sees that part: docs/evaluation.md has the answers. --model: default,
the nano checkpoint of the package.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from deepinfer.data import nano_checkpoint

SHUFFLED: Final = "indexers"
PARTS: Final = {
    "sinks": r"attn\.attn_sink",
    "router-biases": r"ffn\.gate\.bias.*",
    "compressor-2": r"layers\.2\.attn\.compressor\.(wkv|wgate)\.weight",
    "compressor-1": r"layers\.4\.attn\.compressor\.wkv\.weight",
    SHUFFLED: r"attn\.indexer\.wq_b\.weight",
    "engram": r"engram\.embed\.weight",
    "hyper-connections": r"hc_(attn|ffn)_fn",
}
"""Names of the tensors of each part, in the layers of the language model."""


def broken(name: str, value: torch.Tensor, part: str) -> torch.Tensor:
    """The tensor, or what takes its place; of the same dtype."""
    if not re.fullmatch(rf"(layers\..*)?{PARTS[part]}", name):
        return value
    raw = value.view(torch.uint8)
    if part != SHUFFLED:
        return torch.zeros_like(raw).view(value.dtype)
    order = torch.randperm(raw.shape[0], generator=torch.Generator().manual_seed(0))
    return raw[order].view(value.dtype)


def main() -> None:
    """Write the copy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, default=nano_checkpoint())
    options = parser.parse_args()
    shutil.copytree(options.model, options.out)
    changed = []
    for file in sorted(options.out.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            before = {name: shard.get_tensor(name) for name in shard.keys()}
            metadata = shard.metadata()
        after = {name: broken(name, value, options.part) for name, value in before.items()}
        changed += [name for name in before if after[name] is not before[name]]
        save_file(after, file, metadata)
    if not changed:
        parser.error(f"{options.model} has no tensor of {options.part}")
    print(f"{options.out}: {len(changed)} tensors of {options.part}: {', '.join(changed)}")


if __name__ == "__main__":
    main()
