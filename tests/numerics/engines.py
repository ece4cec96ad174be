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
from deepinfer.engine import EngineOptions, ModelRunner
from tests.engine.runs import Piece, extend, prepare
from tests.numerics.recording import LayerRecord, record_layers

LENGTH = 384


@contextmanager
def runner_of(path: Path, numerics: str, compute: str = "bf16") -> Iterator[ModelRunner]:
    """The checkpoint's text model on the reference."""
    options = EngineOptions(
        numerics=numerics, compute=compute, max_model_len=LENGTH, max_num_batched_tokens=LENGTH
    )
    with Checkpoint.open(path, progress=False) as checkpoint:
        yield ModelRunner.load(checkpoint, select_backend(REFERENCE), options)


def random_prompt(runner: ModelRunner, length: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(3, runner.config.text.vocab_size, length)


def logits_of(runner: ModelRunner, ids: npt.NDArray[np.int64]) -> Tensor:
    """Logits of every position of a prompt, computed in one step."""
    cache = runner.cache.open()
    try:
        return extend(runner, cache, ids, all_rows=True)
    finally:
        runner.cache.close(cache)


def record_step(runner: ModelRunner, ids: npt.NDArray[np.int64], start: int) -> list[LayerRecord]:
    """Records of the step that computes positions start.. after an unrecorded step before them."""
    cache = runner.cache.open()
    if start:
        extend(runner, cache, ids[:start])
    batch, _ = prepare(runner, [Piece(ids, start, len(ids), cache)])
    return record_layers(runner.backbone, runner.backend, batch, runner.pools)
