"""Models with parts switched off and with unusual schedules run, and their chunks do not matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import ModelRunner, SamplingParams
from tests.conftest import load_runner
from tests.engine.runs import (
    Piece,
    assert_same_bits,
    generate,
    in_pieces,
    nothing_is_held,
    prepare,
    random_tokens,
    sequence,
    together,
    whole,
)
from tests.model.random_model import write_random_model

CUTS = [1, 2, 7, 8, 9, 15, 17, 24]

NO_ENGRAM: dict[str, Any] = {"engram_layer_ids": []}
NO_CANDIDATES: dict[str, Any] = {"candidate_source_layer_id": None}


def schedule(*ratios: int, sources: list[int], index: list[int] | None = None) -> dict[str, Any]:
    """Changes for another schedule, without candidates; Engram in the last layer."""
    return {
        "num_hidden_layers": len(ratios),
        "compress_ratios": list(ratios),
        "kv_source_layer_ids": sources,
        "index_source_layer_ids": index if index is not None else sources,
        "engram_layer_ids": [len(ratios) - 1],
        **NO_CANDIDATES,
    }


MODELS: dict[str, dict[str, Any]] = {
    "no Engram": NO_ENGRAM,
    "no candidates": NO_CANDIDATES,
    "no YaRN": {"rope_scaling": None},
    "window only": schedule(0, 0, sources=[]) | NO_ENGRAM,
    "one window layer": schedule(0, sources=[]) | NO_ENGRAM,
    "one layer of ratio 1": schedule(1, sources=[0]) | NO_ENGRAM,
    "one layer of ratio 2": schedule(2, sources=[0]) | NO_ENGRAM,
    "Engram in a window layer alone": schedule(0, 0, sources=[]),
    "Engram in every layer": schedule(0, 2, 1, sources=[1, 2]) | {"engram_layer_ids": [0, 1, 2]},
    "ratio 2 after ratio 1": schedule(1, 1, 2, 2, sources=[0, 2]),
    "ratios in turn": schedule(2, 1, 2, 1, sources=[0, 1, 2, 3]),
    "window layers between": schedule(2, 0, 2, 0, 1, 0, 1, sources=[0, 4]),
    "every layer reindexes": schedule(2, 2, 1, 1, sources=[0, 2], index=[0, 1, 2, 3]),
    "candidates of ratio 2": schedule(1, 2, 2, sources=[0, 1], index=[0, 1, 2])
    | {"candidate_source_layer_id": 1},
    "a second source after the candidates": schedule(1, 1, 1, 1, sources=[0, 2])
    | {"candidate_source_layer_id": 0, "index_source_layer_ids": [0, 1, 2, 3]},
    "window of 1": schedule(0, 2, 1, sources=[1, 2]) | {"sliding_window": 1},
    "window of 5": schedule(0, 2, 1, sources=[1, 2]) | {"sliding_window": 5},
    "window longer than the prompt": schedule(0, 1, sources=[1]) | {"sliding_window": 100},
    "one entry selected": schedule(0, 2, 1, sources=[1, 2]) | {"index_topk": 1},
    "all entries selected": schedule(0, 2, 1, sources=[1, 2]) | {"index_topk": 500},
    "one stream": schedule(0, 2, 1, sources=[1, 2]) | {"hc_mult": 1},
    "two streams": schedule(0, 1, sources=[1]) | {"hc_mult": 2},
    "one expert for each token": schedule(0, 1, sources=[1]) | {"num_experts_per_tok": 1},
    "n-grams of 2": schedule(0, 1, sources=[1]) | {"engram_max_ngram_size": 2},
}
FAST = ("ratios in turn", "one expert for each token")
BY_SIZE = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow, id=name) for name in MODELS
]


@contextmanager
def engine_with(
    changes: dict[str, Any], directory: Path, compute: str = "bf16"
) -> Iterator[ModelRunner]:
    """An engine of a random checkpoint with these changes; its cache is free at the end."""
    write_random_model(directory, changes)
    with Checkpoint.open(directory, progress=False) as checkpoint:
        runner = load_runner(checkpoint, "infer", compute, sequences=3)
        yield runner
        assert nothing_is_held(runner)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_SIZE)
def test_chunks_do_not_matter(name: str, tmp_path: Path) -> None:
    with engine_with(MODELS[name], tmp_path) as runner:
        tokens = random_tokens(runner, 27)
        want = whole(runner, tokens)
        assert float(want.std()) > 0.1
        got = together(runner, [tokens, tokens], [CUTS, [13]])
        assert_same_bits(got[0], want, f"{name}: cut before {CUTS}")
        assert_same_bits(got[1], want, f"{name}: cut before 13")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["window only", "ratio 2 after ratio 1"])
def test_text_of_a_reduced_model(name: str, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with engine_with(MODELS[name], tmp_path) as runner:
        prompt = random_tokens(runner, 9)
        text = [token.token_id for token in generate(runner, prompt, params)]
        logits = whole(runner, np.array([*prompt.tolist(), *text]))
        assert text == logits[8:-1].argmax(-1).tolist()


def effect(runner: ModelRunner, length: int, changed: int) -> bool:
    """Does another token at position `changed` change the last row's logits?"""
    tokens = random_tokens(runner, length)
    other = tokens.copy()
    other[changed] = (other[changed] + 1) % 300
    first, second = together(runner, [tokens, other], [[], []])
    return not torch.equal(first[-1], second[-1])


def test_a_window_layer_sees_exactly_its_window(tmp_path: Path) -> None:
    changes = MODELS["one window layer"]
    with engine_with(changes, tmp_path, "fp32") as runner:
        window = runner.config.text.sliding_window
        last = 19
        for back in range(window + 3):
            assert effect(runner, last + 1, last - back) == (back < window), f"{back} tokens back"


def test_a_compressed_layer_sees_beyond_its_window(tmp_path: Path) -> None:
    changes = schedule(1, sources=[0]) | NO_ENGRAM | {"index_topk": 100}
    with engine_with(changes, tmp_path, "fp32") as runner:
        assert all(effect(runner, 20, place) for place in (0, 5, 11))


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 3, 9])
def test_a_row_sees_every_complete_pair(length: int, tmp_path: Path) -> None:
    """Ratio 2 and a window of 1: earlier tokens are seen through their pairs alone."""
    changes = schedule(2, sources=[0]) | NO_ENGRAM | {"sliding_window": 1, "index_topk": 100}
    with engine_with(changes, tmp_path, "fp32") as runner:
        assert all(effect(runner, length, place) for place in {0, 1, length - 2, length - 1})


def test_engram_sees_its_ngrams_and_no_more(tmp_path: Path) -> None:
    """With a window of 1 and no compressed layers, only the n-gram reaches back."""
    changes = schedule(0, sources=[]) | {"sliding_window": 1, "engram_max_ngram_size": 3}
    with engine_with(changes, tmp_path, "fp32") as runner:
        assert [effect(runner, 12, 11 - back) for back in range(5)] == [True] * 3 + [False] * 2


def test_rows_of_a_prompt_never_see_later_tokens(small_runner: ModelRunner) -> None:
    tokens = random_tokens(small_runner, 30)
    other = tokens.copy()
    other[18:] = (other[18:] + 5) % 300
    first, second = together(small_runner, [tokens, other], [[], []])
    assert_same_bits(second[:18], first[:18], "rows before the first other token")
    assert not torch.equal(second[18], first[18])


def test_a_model_with_engram_needs_the_history_of_its_batch(small_runner: ModelRunner) -> None:
    with sequence(small_runner) as cache:
        batch, _ = prepare(small_runner, [Piece(random_tokens(small_runner, 5), 0, 5, cache)])
        with pytest.raises(ValueError, match="build the batch with its history"):
            small_runner.run(dataclasses.replace(batch, history=None))


@pytest.mark.slow
def test_blocks_and_pages_of_the_canonical_size(small_runner: ModelRunner) -> None:
    """128 and 16 tokens give the bits of 16 and 4."""
    tokens = random_tokens(small_runner, 127)
    with Checkpoint.open(small_runner.checkpoint.directory, progress=False) as checkpoint:
        runner = ModelRunner.load(checkpoint, select_backend(REFERENCE), small_runner.options)
        assert (runner.layout.block_tokens, runner.layout.page_tokens) == (128, 16)
        got = in_pieces(runner, tokens, [15, 16, 17, 90])
    assert_same_bits(got, whole(small_runner, tokens), "canonical blocks and pages")
