"""Engines for numeric tests: any checkpoint on the reference, and runs of one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import Chunk, Engine, EngineOptions, build_batch
from tests.numerics.recording import LayerRecord, record_layers

LENGTH = 384


@contextmanager
def engine_of(path: Path, numerics: str, compute: str = "bf16") -> Iterator[Engine]:
    """The checkpoint's text model on the reference."""
    options = EngineOptions(
        numerics=numerics, compute=compute, max_model_len=LENGTH, max_num_batched_tokens=LENGTH
    )
    with Checkpoint.open(path, progress=False) as checkpoint:
        yield Engine.load(checkpoint, select_backend(REFERENCE), options)


def random_prompt(engine: Engine, length: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(3, engine.config.text.vocab_size, length)


def logits_of(engine: Engine, ids: npt.NDArray[np.int64]) -> Tensor:
    """Logits of every position of a prompt, computed in one step."""
    cache = engine.cache.open()
    try:
        return engine.extend(cache, ids, all_rows=True)
    finally:
        engine.cache.close(cache)


def record_step(engine: Engine, ids: npt.NDArray[np.int64], start: int) -> list[LayerRecord]:
    """Records of the step that computes positions start.. after an unrecorded step before them."""
    cache = engine.cache.open()
    if start:
        engine.extend(cache, ids[:start])
    engine.cache.reserve(cache, len(ids))
    batch = build_batch([Chunk(ids, start, len(ids), cache)], engine.operators, engine.history)
    return record_layers(engine.backbone, engine.backend, batch, engine.pools)
