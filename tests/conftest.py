"""Engines that the tests share, and one thread for all of them.

A session keeps one engine of each kind, so its pools hold the bytes of earlier tests: results that
depend on them differ from run to run and are noticed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch; processes of tests inherit it

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.cache import CacheLayout
from deepinfer.checkpoint import Checkpoint
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import EngineOptions, ModelRunner
from tests.model.random_model import write_random_model

BLOCK_TOKENS, PAGE_TOKENS, BACKTRACK = 16, 4, 6
MAX_MODEL_LEN = 128

# The part of the golden data that is in the repository, where the whole is not at hand.
os.environ.setdefault("DEEPINFER_GOLDEN_DIR", str(Path(__file__).parent / "golden"))

RunnerOf = Callable[[str, str], ModelRunner]
"""`runner_of(numerics, compute)`."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is marked `soak` is slow: `-m "not slow"` replaces the `-m "not soak"` of addopts."""
    if item.get_closest_marker("soak") is not None:
        item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """`threads(2)` sets the number of threads for the rest of one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def load_runner(
    checkpoint: Checkpoint, numerics: str, compute: str, sequences: int = 32, backtrack: int = 1
) -> ModelRunner:
    """An engine on the reference with small blocks and pages."""
    options = EngineOptions(
        numerics=numerics,
        compute=compute,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_num_seqs=sequences,
    )
    layout = CacheLayout(
        checkpoint.config.text,
        backtrack=backtrack,
        block_tokens=BLOCK_TOKENS,
        page_tokens=PAGE_TOKENS,
    )
    return ModelRunner.load(checkpoint, select_backend(REFERENCE), options, layout=layout)


def _runners(directory: Path) -> Iterator[RunnerOf]:
    loaded: dict[tuple[str, str], ModelRunner] = {}
    with ExitStack() as stack:
        checkpoint = stack.enter_context(Checkpoint.open(directory, progress=False))

        def runner_of(numerics: str, compute: str) -> ModelRunner:
            key = numerics, compute
            if key not in loaded:
                loaded[key] = load_runner(checkpoint, numerics, compute)
            return loaded[key]

        yield runner_of


@pytest.fixture(scope="session")
def bundled_runners() -> Iterator[RunnerOf]:
    """Engines of the bundled checkpoint, loaded when first asked for."""
    yield from _runners(bundled_checkpoint())


@pytest.fixture(scope="session")
def bundled_runner(bundled_runners: RunnerOf) -> ModelRunner:
    """The bundled checkpoint as it runs by default: INFER, bf16."""
    return bundled_runners("infer", "bf16")


@pytest.fixture(scope="session")
def small_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `random_model.SMALL`: every part, edges after few tokens."""
    return write_random_model(tmp_path_factory.mktemp("small") / "checkpoint", {})


@pytest.fixture(scope="session")
def small_runners(small_directory: Path) -> Iterator[RunnerOf]:
    """Engines of the small checkpoint, loaded when first asked for."""
    yield from _runners(small_directory)


@pytest.fixture(scope="session")
def small_runner(small_runners: RunnerOf) -> ModelRunner:
    """The small checkpoint in INFER, bf16."""
    return small_runners("infer", "bf16")
