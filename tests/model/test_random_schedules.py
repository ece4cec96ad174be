"""Random schedules, sizes, blocks and pages: what the rules allow runs, chunks do not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.cache import CacheLayout
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import EngineOptions, ModelRunner
from tests.engine.runs import assert_same_bits, random_tokens, together
from tests.model.random_model import write_random_model

LENGTH = 61


def random_changes(random: np.random.Generator) -> dict[str, Any]:
    """A text configuration that the model rules allow."""
    layers = int(random.integers(1, 6))
    ratios = [int(ratio) for ratio in random.integers(0, 3, layers)]
    sources: list[int] = []
    for layer, ratio in enumerate(ratios):
        if ratio and (not sources or ratios[sources[-1]] != ratio or random.random() < 0.3):
            sources.append(layer)
    index = [
        i for i, ratio in enumerate(ratios) if ratio and (i in sources or random.random() < 0.5)
    ]
    allowed = [s for s in sources if all(ratios[i] == ratios[s] for i in index if i > s)]
    top_k = int(random.integers(1, 20))
    size = int(random.integers(1, 9))
    engram = sorted(random.choice(layers, int(random.integers(0, layers + 1)), replace=False))
    return {
        "num_hidden_layers": layers,
        "compress_ratios": ratios,
        "kv_source_layer_ids": sources,
        "index_source_layer_ids": index,
        "candidate_source_layer_id": int(random.choice(allowed)) if allowed else None,
        "index_topk": top_k,
        "candidate_block_size": size,
        "candidate_topk_blocks": -(-top_k // size) + int(random.integers(0, 3)),
        "engram_layer_ids": [int(layer) for layer in engram],
        "engram_max_ngram_size": int(random.integers(2, 6)),
        "sliding_window": int(random.integers(1, 40)),
        "num_experts_per_tok": int(random.integers(1, 5)),
        "hc_mult": int(random.integers(1, 5)),
    }


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_random_schedule(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    changes = random_changes(random)
    write_random_model(tmp_path, changes, seed)
    compute = str(random.choice(["bf16", "fp32", "fp64"]))
    numerics = str(random.choice(["ref", "infer"]))
    options = EngineOptions(numerics=numerics, compute=compute, max_model_len=64, max_num_seqs=4)
    with Checkpoint.open(tmp_path, progress=False) as checkpoint:
        layout = CacheLayout(
            checkpoint.config.text,
            block_tokens=2 * int(random.integers(1, 12)),
            page_tokens=int(random.integers(1, 20)),
        )
        runner = ModelRunner.load(checkpoint, select_backend(REFERENCE), options, layout=layout)
        tokens = random_tokens(runner, LENGTH, seed)
        cuts = [
            [],
            *(
                random.choice(np.arange(1, LENGTH), count, replace=False).tolist()
                for count in (1, 4)
            ),
            [*random.integers(1, 50, 4).tolist(), *range(50, LENGTH)],
        ]
        want, *others = together(runner, [tokens] * len(cuts), cuts)
    for own, got in zip(cuts[1:], others, strict=True):
        what = f"cuts {own}, {layout.block_tokens} and {layout.page_tokens} tokens, {changes}"
        assert_same_bits(got, want, what)
