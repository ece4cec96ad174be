"""Engines of a small checkpoint on backends that are made inside a test."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from deepinfer.backend import Backend
from deepinfer.backend.registry import Selected
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import EngineOptions, ModelRunner
from tests.backend.plugins import HARDWARE, spec
from tests.engine.runs import extend

PROMPT_ROWS = 16
PROMPT = np.array([5, 17, 3, 250, 17, 3, 99, 8, 41, 17, 3, 60, 7, 7, 120, 31, 2, 9, 77, 300, 14])


def selected(backend: Backend, name: str = "chip") -> Selected:
    """The backend, as if its plugin were installed and named."""
    hooks = SimpleNamespace(deepinfer_create=lambda mode, device: backend)
    return Selected(spec(name), HARDWARE, "test", hooks)  # type: ignore[arg-type]


def runner_on(backend: Backend, checkpoint: Checkpoint, strict: bool = False) -> ModelRunner:
    """An engine in INFER and bf16, of 64 tokens."""
    options = EngineOptions(
        numerics="infer", max_model_len=64, max_num_batched_tokens=32, max_num_seqs=4
    )
    return ModelRunner.load(checkpoint, selected(backend), options, strict=strict)


def logits(runner: ModelRunner) -> torch.Tensor:
    """Logits of every row of `PROMPT`, in steps of 16 and of 5 rows.

    What is behind them in the cache decides them too, so that a wrong write shows.
    """
    cache = runner.cache.open()
    found = extend(runner, cache, PROMPT, all_rows=True, chunk_rows=PROMPT_ROWS)
    runner.cache.close(cache)
    return found
