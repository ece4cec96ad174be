"""The engine breaks ties by the lower index everywhere, whatever the width and the place."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from deepinfer.backend import SamplingParameters
from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.backend.resolution import Operators, resolve
from deepinfer.backend.sampling import Purpose

INF, NAN = float("inf"), float("nan")
WIDTHS = [1, 2, 3, 5, 15, 16, 17, 31, 33, 64, 100, 129, 300, 1025]
LEVELS = [-INF, -1.0, -0.0, 0.0, 0.0, 0.0, 0.5, 1.0, NAN]


@pytest.fixture(scope="module")
def operators() -> Operators:
    backend = select_backend(REFERENCE).create()
    return resolve(REFERENCE, backend, backend, [])


def lowest_first(scores: Sequence[float], allowed: Sequence[int], k: int) -> list[int]:
    """The k best of some entries in plain Python: by score, then by index; ascending, -1 filled."""
    known = [entry for entry in allowed if scores[entry] > -INF]
    best = sorted(sorted(known, key=lambda entry: (-scores[entry], entry))[:k])
    return best + [-1] * (k - len(best))


def crafted(width: int, rows: int = 5) -> list[list[float]]:
    """Scores of few values, so that nearly every boundary is a tie; the first row has one value."""
    generator = random.Random(width)
    return [[0.0] * width, *(generator.choices(LEVELS, k=width) for _ in range(rows - 1))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_top(operators: Operators, width: int, dtype: torch.dtype) -> None:
    scores = crafted(width)
    visible = [width, width, max(1, width // 2), 1, 0]
    for k in (1, 2, 16, width, width + 3):
        got = operators.top(torch.tensor(scores, dtype=dtype), torch.tensor(visible), k, None, 1)
        want = [
            lowest_first(row, range(seen), k) for row, seen in zip(scores, visible, strict=True)
        ]
        assert got.tolist() == want


@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("width", WIDTHS)
def test_top_among_candidates(operators: Operators, width: int, size: int) -> None:
    scores = crafted(width)
    last = (width - 1) // size
    candidates = [sorted({0, last // 2, last})] * len(scores)
    padded = [blocks + [-1] * (4 - len(blocks)) for blocks in candidates]
    got = operators.top(
        torch.tensor(scores),
        torch.full((len(scores),), width),
        7,
        torch.tensor(padded, dtype=torch.int32),
        size,
    )
    allowed = [[e for e in range(width) if e // size in blocks] for blocks in candidates]
    want = [lowest_first(*one, 7) for one in zip(scores, allowed, strict=True)]
    assert got.tolist() == want


@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("width", WIDTHS)
def test_best_blocks(operators: Operators, width: int, size: int) -> None:
    scores = crafted(width)
    seen = [width, width, max(1, width // 2), 1, 0]
    masked = [row[:n] + [-INF] * (width - n) for row, n in zip(scores, seen, strict=True)]
    for k in (1, 3, 200):
        got = operators.best_blocks(torch.tensor(masked), torch.tensor(seen), size, k)
        want = []
        for row, visible in zip(masked, seen, strict=True):
            numbers = [-INF if value != value else value for value in row]
            best = [max(numbers[b : b + size]) for b in range(0, width, size)]
            if visible:
                best[(visible - 1) // size] = INF
            want.append(lowest_first(best, range(len(best)), k))
        assert got.tolist() == want


@pytest.mark.parametrize("experts", [3, 8, 17, 64, 384])
def test_route(operators: Operators, experts: int) -> None:
    generator = random.Random(experts)
    logits = [generator.choices([-1.0, 0.0, 0.0, 2.0], k=experts) for _ in range(19)]
    zeros = torch.zeros(experts)
    mask = torch.zeros(len(logits), dtype=torch.bool)
    got = operators.route(torch.tensor(logits), zeros, zeros, mask, 3, 1.5).ids
    want = [sorted(range(experts), key=lambda e, row=row: (-row[e], e))[:3] for row in logits]
    assert got.tolist() == want


@pytest.mark.parametrize("vocabulary", [2, 33, 640, 4099])
def test_greedy_token(operators: Operators, vocabulary: int) -> None:
    generator = random.Random(vocabulary)
    logits = [generator.choices([-1.0, -0.0, 0.0, 0.0], k=vocabulary) for _ in range(19)]
    rows = len(logits)
    parameters = SamplingParameters(
        temperature=torch.zeros(rows),
        top_p=torch.ones(rows),
        top_k=torch.zeros(rows, dtype=torch.int64),
        min_p=torch.zeros(rows),
    )
    logprobs = operators.process(torch.tensor(logits), parameters)
    places = torch.arange(rows)
    got = operators.sample(logprobs, places, places, Purpose.SAMPLE)
    assert got.tolist() == [row.index(max(row)) for row in logits]
