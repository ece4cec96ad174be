"""Loading what is measured: a checkpoint on a backend, with a cache of the size that is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.backend.registry import Selected
from deepinfer.checkpoint import Checkpoint
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import Engine, EngineOptions
from deepinfer.engine.engine import call_limits
from deepinfer.errors import UsageError


@contextmanager
def open_engine(
    model: str | Path | None, selected: Selected, options: EngineOptions
) -> Iterator[Engine]:
    """The engine of a checkpoint (None: the package's random one), closed with its files."""
    with Checkpoint.open(model or bundled_checkpoint(), progress=False) as checkpoint:
        options.model_len(checkpoint.config)  # before anything is read
        call_limits(options, checkpoint.config)
        yield Engine.load(checkpoint, selected, options)


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


def random_tokens(engine: Engine, count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token ids of the model's vocabulary, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, engine.config.text.vocab_size, count, dtype=np.int64)


def model_facts(engine: Engine) -> dict[str, Any]:
    """What a report says of a checkpoint."""
    text = engine.config.text
    directory = Path(engine.checkpoint.directory)
    return {
        "name": directory.name,
        "stored_bytes": sum(file.stat().st_size for file in directory.glob("*.safetensors")),
        "layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
        "experts": text.n_routed_experts,
        "numerics": engine.numerics.value,
        "compute": engine.options.compute,
        "operators": engine.operators.summary(),
    }
