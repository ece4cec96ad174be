"""process of the reference: oracle, vectors, one rule each, batch invariance."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.backend.sampling import SamplingParameters
from deepinfer_reference.sampling import ReferenceSampling, tree_sum
from tests.reference import sampling_oracle as oracle

VECTORS = Path(__file__).with_name("sampling_vectors.json")
SAMPLING = ReferenceSampling()
INF = math.inf


def parameters(
    rows: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> SamplingParameters:
    return SamplingParameters(
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.full((rows,), top_k, dtype=torch.int64),
        torch.full((rows,), min_p),
    )


def select(given: SamplingParameters, rows: Tensor) -> SamplingParameters:
    return SamplingParameters(
        given.temperature[rows], given.top_p[rows], given.top_k[rows], given.min_p[rows]
    )


def process(logits: list[float], **given: float) -> list[float]:
    row = torch.tensor([logits], dtype=torch.float32)
    return SAMPLING.process(row, parameters(1, **given))[0].tolist()


def same(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and all(
        x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True)
    )


def kept(logprobs: list[float]) -> list[int]:
    return [t for t, value in enumerate(logprobs) if value != -INF]


def bits_equal(a: Tensor, b: Tensor) -> bool:
    integer = torch.int64 if a.dtype == torch.float64 else torch.int32
    return a.dtype == b.dtype and torch.equal(a.view(integer), b.view(integer))


# --- process against the oracle ------------------------------------------------------------------


def test_vectors_are_what_the_oracle_makes() -> None:
    assert VECTORS.read_text() == oracle.text(oracle.vectors())


def test_process_equals_the_published_vectors() -> None:
    cases = json.loads(VECTORS.read_text())["process"]
    wrong = []
    for index, case in enumerate(cases):
        names = ("temperature", "top_p", "top_k", "min_p")
        got = process([float(x) for x in case["logits"]], **{name: case[name] for name in names})
        if not same(got, [float(x) for x in case["logprobs"]]):
            wrong.append((index, case, got))
    assert len(cases) > 40
    assert not wrong


F32 = st.floats(-40, 40, width=32)
LOGITS = st.one_of(
    st.lists(st.one_of(F32, st.just(-INF)), min_size=1, max_size=24),
    st.lists(st.sampled_from([-INF, -0.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=40),
)
SETTINGS = settings(derandomize=True, deadline=None, max_examples=250)


@pytest.mark.slow
@SETTINGS
@given(
    LOGITS,
    st.sampled_from([0.0, 1e-39, 1e-30, 0.1, 0.7, 1.0, 2.0, 50.0]).map(oracle.float32),
    st.one_of(
        st.sampled_from([1e-20, 0.25, 0.5, 0.75, 1.0]),
        st.floats(2.0**-20, 1, width=32),
    ).map(oracle.float32),
    st.integers(0, 45),
    st.one_of(st.sampled_from([0.0, 0.5]), st.floats(0, 1, width=32, exclude_max=True)),
)
def test_process_equals_brute_force(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    got = process(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    assert same(got, oracle.process(logits, temperature, top_p, top_k, min_p))


# --- process, one rule each ----------------------------------------------------------------------


def test_without_filters_it_is_the_log_softmax() -> None:
    logits = torch.linspace(-3, 4, 37)[None]
    got = SAMPLING.process(logits, parameters(1))
    expected = torch.log_softmax(logits.double(), -1).float()
    assert torch.equal(got, expected)


def test_temperature_divides() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    got = SAMPLING.process(logits, parameters(1, temperature=0.5))
    assert torch.equal(got, SAMPLING.process(logits * 2, parameters(1)))


def test_temperature_multiplies_by_its_rounded_reciprocal() -> None:
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(5)) * 8
    got = SAMPLING.process(logits, parameters(1, temperature=0.7))
    reciprocal = oracle.float32(1 / oracle.float32(0.7))
    expected = torch.log_softmax((logits * reciprocal).double(), -1).float()
    divided = torch.log_softmax((logits / oracle.float32(0.7)).double(), -1).float()
    assert torch.equal(got, expected)
    assert not torch.equal(got, divided)


def test_temperature_zero_takes_the_lowest_id_of_the_highest() -> None:
    assert process([1.0, 7.0, 7.0], temperature=0.0) == [-INF, 0.0, -INF]


def test_temperature_that_overflows_acts_as_zero() -> None:
    assert process([-5.0, 7.0, 2.0], temperature=1e-38) == [-INF, 0.0, -INF]
    assert process([-5.0, 0.0, -2.0], temperature=1e-40) == [-INF, 0.0, -INF]


def test_negative_and_positive_zero_are_a_tie() -> None:
    assert kept(process([-0.0, 0.0], top_k=1)) == [0]
    assert kept(process([-0.0, 0.0], temperature=0.0)) == [0]


def test_top_p_keeps_the_token_that_crosses() -> None:
    assert kept(process([0.0, 0.0, 0.0, 0.0], top_p=0.3)) == [0, 1]


def test_top_p_keeps_a_token_whose_mass_before_equals_the_limit() -> None:
    assert kept(process([0.0, 0.0, 0.0, 0.0], top_p=0.5)) == [0, 1, 2]


def test_tiny_top_p_keeps_exactly_one() -> None:
    assert process([1.0, 1.0, 0.0], top_p=1e-30) == [0.0, -INF, -INF]


def test_top_p_of_one_keeps_tokens_without_mass() -> None:
    assert kept(process([0.0, -80.0, -0.5, -90.0])) == [0, 1, 2, 3]


@pytest.mark.parametrize("half", [1, 5, 7, 13, 26, 60])
def test_top_p_is_a_share_of_the_row_in_spite_of_rounding(half: int) -> None:
    # Equal tokens have masses that sum to a little more or less than 2^31.
    assert kept(process([0.0] * (2 * half), top_p=0.5)) == list(range(half + 1))
    assert len(kept(process([0.0] * half + [-60.0]))) == half + 1


def test_top_p_sees_the_whole_row_and_not_the_top_k() -> None:
    # Before the third token: 0.5 of the row, but two thirds of the first three.
    assert kept(process([0.0] * 4, top_p=0.6, top_k=3)) == [0, 1, 2]


@pytest.mark.parametrize("top_k", [3, 4, 1 << 40])
def test_top_k_of_the_vocabulary_or_more_keeps_all(top_k: int) -> None:
    assert process([0.5, 2.0, 1.0], top_k=top_k) == process([0.5, 2.0, 1.0])


def test_top_k_breaks_ties_by_the_lower_id() -> None:
    assert kept(process([1.0, 2.0, 1.0, 1.0], top_k=2)) == [0, 1]


def test_min_p_is_relative_to_the_most_probable() -> None:
    logits = [math.log(x) for x in (0.1, 0.5, 0.26, 0.14)]
    assert kept(process(logits, min_p=0.5)) == [1, 2]


def test_single_survivor_is_exactly_zero() -> None:
    assert process([0.3, 5.7, -1.0], temperature=0.7, top_k=1) == [-INF, 0.0, -INF]
    assert process([0.3]) == [0.0]


@pytest.mark.parametrize("row", [[0.0, math.nan], [INF, 0.0], [-INF, -INF], [INF, math.nan]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bad_row_is_nan_and_spoils_no_other(row: list[float], temperature: float) -> None:
    logits = torch.tensor([[1.0, 0.0], row, [0.0, 2.0]])
    got = SAMPLING.process(logits, parameters(3, temperature=temperature))
    good = SAMPLING.process(logits[[0, 2]], parameters(2, temperature=temperature))
    assert got[1].isnan().all()
    assert bits_equal(got[[0, 2]], good)


def test_rows_have_their_own_parameters() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(3, 3)
    given = parameters(3)
    given.temperature[0] = 0.0
    given.top_k[1] = 2
    got = SAMPLING.process(logits, given)
    assert [kept(row) for row in got.tolist()] == [[2], [1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_dtype_of_the_result(given: torch.dtype, returned: torch.dtype) -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0]], dtype=given)
    got = SAMPLING.process(logits, parameters(1, temperature=0.5))
    assert got.dtype == returned
    assert torch.allclose(got.double(), torch.log_softmax(logits.double() * 2, -1), atol=1e-6)


def test_float64_is_computed_in_float64() -> None:
    logits = torch.tensor([[0.1, 0.1 + 1e-12, 0.0]], dtype=torch.float64)
    got = SAMPLING.process(logits, parameters(1, top_k=2))
    assert got[0, 0] < got[0, 1]
    assert torch.allclose(got[0, :2], torch.log_softmax(logits[0, :2], -1), rtol=0, atol=1e-15)


def test_process_of_no_rows() -> None:
    assert SAMPLING.process(torch.zeros(0, 5), parameters(0)).shape == (0, 5)


def test_process_refuses_parameters_of_another_batch() -> None:
    with pytest.raises(ValueError, match="temperature has 2 rows, expected 3"):
        SAMPLING.process(torch.zeros(3, 4), parameters(2))


# --- bit for bit, whatever the batch -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 4, 5, 37, 640, 40000, 129280])
def test_process_is_batch_invariant(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = 18 if size <= 640 else 17
    logits = torch.randn(rows, size, generator=generator) * 4
    given = parameters(rows, temperature=0.8)
    given.top_p[1::4], given.top_k[2::4], given.min_p[3::4] = 0.9, 20, 0.01
    given.temperature[4] = 0.0
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = SAMPLING.process(logits, given)
        torch.set_num_threads(2)
        assert bits_equal(SAMPLING.process(logits, given), expected), "other thread count"
    finally:
        torch.set_num_threads(threads)
    order = torch.randperm(rows, generator=generator)
    permuted = SAMPLING.process(logits[order], select(given, order))
    assert bits_equal(permuted, expected[order]), "other order of rows"
    for row in (0, 4, rows - 1):
        alone = SAMPLING.process(logits[row : row + 1], select(given, torch.tensor([row])))
        assert bits_equal(alone, expected[row : row + 1]), f"row {row} alone"


def test_process_does_not_depend_on_the_layout_in_memory() -> None:
    logits = torch.randn(16, 37, generator=torch.Generator().manual_seed(1))
    expected = SAMPLING.process(logits, parameters(16))
    assert bits_equal(SAMPLING.process(logits.t().contiguous().t(), parameters(16)), expected)


@pytest.mark.parametrize("width", [1, 2, 3, 37, 40000])
def test_tree_sum_of_integers_is_exact(width: int) -> None:
    values = torch.arange(2 * width, dtype=torch.float64).view(2, width)
    assert tree_sum(values).tolist() == values.long().sum(-1, keepdim=True).tolist()


def test_no_value_is_read_by_the_host() -> None:
    # A meta tensor has no values: reading one, or a shape that depends on one, would raise.
    rows, size = 17, 70
    given = SamplingParameters(*(x.to("meta") for x in vars(parameters(rows)).values()))
    bits = torch.empty(rows, 3, dtype=torch.int32, device="meta")
    integers = torch.empty(rows, dtype=torch.int64, device="meta")
    logits = SAMPLING.mask(torch.empty(rows, size, device="meta"), bits)
    logprobs = SAMPLING.process(logits, given)
    assert SAMPLING.sample(logprobs, integers, integers, 0).shape == (rows,)
    assert SAMPLING.top_logprobs(logprobs, 5).logprobs.shape == (rows, 5)


@pytest.mark.parametrize("name", ["verify", "residual"])
def test_operators_of_speculation_are_left_to_the_contract(name: str) -> None:
    assert name not in vars(ReferenceSampling)
