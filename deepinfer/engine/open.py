"""`open_engine`: the way from a checkpoint and a backend to an engine that takes requests."""

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

    model: directory or Hub id; None: what `default_checkpoint` gives. revision: of a Hub id.
    strict: an operator that the backend does not run itself is an error; None:
    DEEPINFER_STRICT_OPERATORS. allow_null: see `refuse_null`. observed: the settings that act on
    the process (statistics line, garbage collection by steps, profiling endpoint) have their
    effect. progress: bars on stderr while loading. settings: the environment's by default. layout:
    cache geometry other than the canonical one. on_checkpoint is called with the open checkpoint
    before anything is loaded from it.

    Errors: the family of `deepinfer.errors`. Options that the model cannot have are refused before
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
    """What is loaded where nothing is named: DEEPINFER_HF_MODEL_DIR, else the nano checkpoint."""
    return environment.text(environment.MODEL_DIRECTORY) or nano_checkpoint()
