"""`open_engine`: opens a checkpoint on a backend and makes the engine that serves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deepinfer.backend.registry import Selected, refuse_null
from deepinfer.cache import CacheLayout
from deepinfer.checkpoint import Checkpoint
from deepinfer.data import nano_checkpoint
from deepinfer.engine.engine import Engine
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.runner import ModelRunner, call_limits
from deepinfer.settings import environment
from deepinfer.settings.settings import Settings


def open_engine(
    model: str | Path | None,
    selected: Selected,
    options: EngineOptions | None = None,
    *,
    revision: str | None = None,
    strict: bool | None = None,
    allow_null: bool | None = False,
    observed: bool = False,
    progress: bool = False,
    settings: Settings | None = None,
    layout: CacheLayout | None = None,
    on_checkpoint: Callable[[Checkpoint], None] | None = None,
) -> Engine:
    """An engine of a checkpoint on a backend; `close` it, or use it as a context manager.

    model: directory or Hub id; None: `default_checkpoint`. revision: of a Hub id. strict: an
    operator that the backend does not run itself is an error; None: DEEPINFER_STRICT_OPERATORS.
    allow_null: see `refuse_null`. observed: the engine logs the statistics line, collects Python's
    garbage by steps and serves the profiling endpoint, as far as the settings ask for it. progress:
    show bars on stderr while loading. settings: by default those of the environment. layout: a
    cache geometry other than the canonical one. on_checkpoint: called with the open checkpoint
    before anything is loaded from it.

    Errors: subclasses of DeepInferError. Options that do not fit the model are refused before
    anything is loaded.
    """
    refuse_null(selected, allow_null)
    options = EngineOptions() if options is None else options
    if strict is None:
        strict = environment.flag(environment.STRICT_OPERATORS)
    if settings is None:
        settings = Settings.from_environment(backends=(selected.spec,))
    checkpoint = Checkpoint.open(
        default_checkpoint() if model is None else model, revision=revision, progress=progress
    )
    try:
        call_limits(options, checkpoint.config)
        if on_checkpoint is not None:
            on_checkpoint(checkpoint)
        runner = ModelRunner.load(
            checkpoint,
            selected,
            options,
            strict=strict,
            progress=progress,
            layout=layout,
            settings=settings,
        )
        return Engine(runner, settings=settings if observed else None, owns_checkpoint=True)
    except BaseException:
        checkpoint.close()
        raise


def default_checkpoint() -> str | Path:
    """The checkpoint to use where none is named: DEEPINFER_HF_MODEL_DIR, else the nano one."""
    return environment.text(environment.MODEL_DIRECTORY) or nano_checkpoint()
