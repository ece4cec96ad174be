"""Opening an engine: what is refused, when its checkpoint is closed, and what is left over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import EngineOptions, ModelRunner, SamplingParams, open_engine
from deepinfer.errors import UsageError

SMALL = EngineOptions(max_model_len=64, max_num_batched_tokens=64, max_num_seqs=2)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Checkpoint]:
    """The checkpoints that were closed, in order."""
    found: list[Checkpoint] = []
    close = Checkpoint.close

    def noting(checkpoint: Checkpoint) -> None:
        found.append(checkpoint)
        close(checkpoint)

    monkeypatch.setattr(Checkpoint, "close", noting)
    return found


@pytest.fixture
def no_collection() -> Iterator[None]:
    """References alone decide what is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_options_that_the_model_cannot_have_are_refused_before_loading(
    small_directory: Path, closed: list[Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelRunner, "load", None)
    options = EngineOptions(max_model_len=2**30)
    with pytest.raises(UsageError, match=f"max_model_len is {2**30}"):
        open_engine(small_directory, select_backend(REFERENCE), options)
    assert len(closed) == 1


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_load_that_raises_closes_the_checkpoint(
    error: type[BaseException],
    small_directory: Path,
    closed: list[Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*arguments: Any, **options: Any) -> ModelRunner:
        raise error

    monkeypatch.setattr(ModelRunner, "load", load)
    with pytest.raises(error):
        open_engine(small_directory, select_backend(REFERENCE), SMALL)
    assert len(closed) == 1


@pytest.mark.usefixtures("no_collection")
def test_the_weights_go_with_the_last_reference(small_directory: Path) -> None:
    """A device holds the weights of one engine after the other, without a collection between."""
    engine = open_engine(small_directory, select_backend(REFERENCE), SMALL)
    with engine:
        engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
        engine.drain()
    kept = [weakref.ref(engine), weakref.ref(engine.runner), weakref.ref(engine.runner.backbone)]
    del engine
    assert [reference() for reference in kept] == [None] * 3


@pytest.mark.slow
def test_close_may_be_called_again(small_directory: Path) -> None:
    engine = open_engine(small_directory, select_backend(REFERENCE), SMALL, observed=True)
    for _ in range(2):
        engine.close()
        request = engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=2))
        engine.drain()
        assert request.sequences[0].output_length
