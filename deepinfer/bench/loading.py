"""What is measured: its length, its tokens, and what a report says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.checkpoint import Checkpoint
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import ModelRunner
from deepinfer.errors import UsageError


def positions_of(model: str | Path | None) -> int:
    """Positions that a checkpoint's model has; headers only."""
    with Checkpoint.open(model or bundled_checkpoint(), progress=False) as checkpoint:
        return checkpoint.config.text.max_position_embeddings


def check_length(model: str | Path | None, length: int, what: str) -> None:
    """UsageError when a model has fewer positions than a run needs."""
    limit = positions_of(model)
    if length > limit:
        raise UsageError(
            f"{what} need {length} positions and {model or 'the random checkpoint'} has {limit}; "
            "ask for fewer, or write a model with more positions (bench/README.md)"
        )


def random_tokens(
    runner: ModelRunner, count: int, seed: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token ids of the model's vocabulary, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, runner.config.text.vocab_size, count, dtype=np.int64)


def model_facts(runner: ModelRunner) -> dict[str, Any]:
    """What a report says of a checkpoint."""
    text = runner.config.text
    directory = Path(runner.checkpoint.directory)
    return {
        "name": directory.name,
        "stored_bytes": sum(file.stat().st_size for file in directory.glob("*.safetensors")),
        "layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
        "experts": text.n_routed_experts,
        "numerics": runner.numerics.value,
        "compute": runner.options.compute,
        "operators": runner.operators.summary(),
    }
