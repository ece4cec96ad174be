"""Drawing tokens: the oracle, the published vectors, the distribution, batch invariance."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.backend.sampling import Purpose
from deepinfer_reference.sampling import ReferenceSampling, masses
from tests.reference import sampling_oracle as oracle

VECTORS = Path(__file__).with_name("sampling_vectors.json")
SAMPLING = ReferenceSampling()
INF = math.inf


def signed(value: int) -> int:
    """The int64 with the bit pattern of an unsigned 64-bit number."""
    return value - (1 << 64) if value >> 63 else value


def draw(logprobs: Tensor, seed: int, position: int, purpose: int = Purpose.SAMPLE) -> list[int]:
    """The same seed and position for every row."""
    rows = logprobs.shape[0]
    seeds = torch.full((rows,), signed(seed), dtype=torch.int64)
    positions = torch.full((rows,), signed(position), dtype=torch.int64)
    ids = SAMPLING.sample(logprobs, seeds, positions, purpose)
    assert ids.dtype == torch.int64
    return ids.tolist()


def many(logprobs: list[float], count: int, seed: int = 7) -> Tensor:
    """Draws from one row at positions 0..count - 1."""
    rows = torch.tensor([logprobs]).expand(count, len(logprobs))
    seeds = torch.full((count,), seed)
    return SAMPLING.sample(rows, seeds, torch.arange(count), Purpose.SAMPLE)


def test_sample_equals_the_published_vectors() -> None:
    cases = json.loads(VECTORS.read_text())["sample"]
    wrong = []
    for index, case in enumerate(cases):
        row = torch.tensor([[float(x) for x in case["logprobs"]]])
        got = draw(row, int(case["seed"], 16), int(case["position"], 16), case["purpose"])
        if got != [case["id"]]:
            wrong.append((index, case, got))
    assert len(cases) > 40
    assert not wrong


SEED = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63, 2**64 - 1]))


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=250)
@given(
    st.lists(st.one_of(st.floats(-25, 8, width=32), st.just(-INF)), min_size=1, max_size=40),
    SEED,
    st.integers(0, 2**63 - 1),
    st.sampled_from(Purpose),
)
def test_sample_equals_brute_force(
    logprobs: list[float], seed: int, position: int, purpose: Purpose
) -> None:
    got = draw(torch.tensor([logprobs]), seed, position, purpose)
    assert got == [oracle.sample(logprobs, seed, position, int(purpose))]


def test_masses_are_in_units_of_two_to_the_minus_31() -> None:
    logprobs = torch.tensor([0.0, math.log(0.5), -21.4, -21.5, -INF])
    assert masses(logprobs).tolist() == [1 << 31, oracle.mass(float(logprobs[1])), 1, 0, 0]


def test_a_token_without_mass_is_never_drawn() -> None:
    logprobs = [-INF, -22.0, math.log(0.5), -INF, -30.0, math.log(0.5), -22.0, -INF]
    assert sorted(set(many(logprobs, 2000).tolist())) == [2, 5]


def test_a_single_survivor_is_always_drawn() -> None:
    assert set(many([-INF, -INF, 0.0], 300).tolist()) == {2}


def test_a_row_without_any_mass_gives_minus_one() -> None:
    assert draw(torch.tensor([[-INF, -INF], [-40.0, -22.0]]), 1, 2) == [-1, -1]


def test_a_row_of_nan_gives_minus_one_and_spoils_no_other() -> None:
    logprobs = torch.tensor([[math.nan, math.nan], [-INF, 0.0], [0.0, math.nan]])
    assert draw(logprobs, 1, 2) == [-1, 1, -1]


@pytest.mark.slow
def test_distribution_by_chi_square() -> None:
    count, probabilities = 20_000, [0.3, 0.005, 0.2, 0.125, 0.25, 0.02, 0.1]
    ids = many([math.log(p) for p in probabilities], count, seed=2024)
    seen = torch.bincount(ids, minlength=len(probabilities)).tolist()
    expected = [count * p for p in probabilities]
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    assert statistic < 22.46, seen  # six degrees of freedom, p = 0.001


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"seed": 12}, {"position": 1}, {"purpose": Purpose.RESIDUAL}])
def test_draws_of_other_counters_are_unrelated(change: dict[str, int]) -> None:
    # 64 equally likely tokens: about 1 in 64 pairs is equal by chance.
    logprobs = torch.full((1, 64), -math.log(64))
    base = {"seed": 11, "position": 0, "purpose": Purpose.SAMPLE}
    equal = 0
    for step in range(100):
        one = {**base, "position": 10 * step}
        other = {**one, **change, "position": one["position"] + change.get("position", 0)}
        equal += draw(logprobs, **one) == draw(logprobs, **other)
    assert equal <= 8


def test_float64_masses_of_float64_rows() -> None:
    logprobs = torch.log_softmax(torch.arange(9, dtype=torch.float64), -1)[None]
    got = [draw(logprobs, 3, position)[0] for position in range(50)]
    assert got == [oracle.sample(logprobs[0].tolist(), 3, position, 0) for position in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 37, 640, 40000, 129280])
def test_a_draw_does_not_depend_on_the_batch(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = 17
    logprobs = torch.log_softmax(torch.randn(rows, size, generator=generator), -1)
    seeds = torch.randint(-(2**62), 2**62, (rows,), generator=generator)
    positions = torch.arange(rows) * 1000
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = SAMPLING.sample(logprobs, seeds, positions, Purpose.SAMPLE)
        torch.set_num_threads(2)
        again = SAMPLING.sample(logprobs, seeds, positions, Purpose.SAMPLE)
    finally:
        torch.set_num_threads(threads)
    order = torch.randperm(rows, generator=generator)
    permuted = SAMPLING.sample(logprobs[order], seeds[order], positions[order], Purpose.SAMPLE)
    alone = [
        int(SAMPLING.sample(logprobs[r][None], seeds[r][None], positions[r][None], Purpose.SAMPLE))
        for r in range(0, rows, 8)
    ]
    assert torch.equal(again, expected), "other thread count"
    assert torch.equal(permuted, expected[order]), "other order of rows"
    assert alone == expected[::8].tolist(), "rows alone"


def test_no_rows() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert SAMPLING.sample(torch.zeros(0, 5), none, none, Purpose.SAMPLE).shape == (0,)


def test_sample_refuses_seeds_of_another_batch() -> None:
    with pytest.raises(ValueError, match="seeds has 1 rows, expected 2"):
        SAMPLING.sample(torch.zeros(2, 3), torch.zeros(1).long(), torch.zeros(2).long(), 0)
