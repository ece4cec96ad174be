"""Metrics by hand, and that NaN or nothing never passes one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deepinfer.conformance.golden.comparison import absolute, close, differing, equal
from deepinfer.conformance.golden.metrics import (
    agreement,
    bf16_steps,
    group_share,
    median,
    quantile,
    relative,
    row_steps,
    same_place,
    worst,
)
from deepinfer.conformance.golden.report import Measure
from deepinfer.conformance.golden.scratch import codes_apart

INF, NAN = float("inf"), float("nan")


def bf16(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.bfloat16)


def fp32(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float32)


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 5.0], [3.0, 4.0], 0.2),  # sqrt(1/2) over sqrt(25/2)
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1e-9, 0.0], [0.0, 0.0], INF),
        ([-0.0, 0.0], [0.0, 0.0], 0.0),
        ([-INF, 5.0], [-INF, 4.0], 0.25),  # a masked column counts as a zero
        ([-INF, 4.0], [INF, 4.0], INF),
        ([1.0, 4.0], [-INF, 4.0], INF),
        ([INF, 4.0], [3.0, 4.0], INF),
        ([NAN, 4.0], [3.0, 4.0], NAN),
        ([3.0, 4.0], [NAN, 4.0], NAN),
        ([NAN, 4.0], [NAN, 4.0], NAN),
    ],
)
def test_relative(got: list[float], want: list[float], expected: float) -> None:
    value = float(relative(fp32(*got), fp32(*want))[0])
    assert value == pytest.approx(expected, nan_ok=True)


def test_relative_is_per_row_over_all_other_axes() -> None:
    want = torch.ones(2, 3, 4)
    got = want.clone()
    got[1] = 1.5
    assert relative(got, want).tolist() == [0.0, 0.5]


def test_relative_is_computed_in_float64() -> None:
    want = torch.full((1, 1000), 3e38)
    assert float(relative(want * 0.5, want)[0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.9, 9.0), (0.91, 10.0), (0.95, 10.0), (1.0, 10.0), (0.1, 1.0), (0.05, 1.0)],
)
def test_quantile_is_exceeded_by_no_more_than_the_rest(share: float, expected: float) -> None:
    values = torch.arange(10, 0, -1).double()
    assert quantile(values, share) == expected
    assert (values <= expected).double().mean() >= share


@pytest.mark.parametrize("share", [0.9, 0.95, 0.99])
def test_quantile_never_excuses_one_position_more(share: float) -> None:
    for count in range(1, 400):
        allowed = count - math.ceil(round(share * count, 6))
        values = torch.zeros(count).double()
        values[:allowed] = 1
        assert quantile(values, share) == 0
        values[: allowed + 1] = 1
        assert quantile(values, share) == 1


def test_median() -> None:
    assert median(torch.tensor([5.0, 1.0, 3.0]).double()) == 3
    assert median(torch.tensor([5.0, 1.0, 3.0, 2.0]).double()) == 2.5


def test_agreement_counts_rows_of_equal_argmax() -> None:
    got = torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.0, 9.0], [1.0, 0.0]])
    want = torch.tensor([[0.0, 1.0], [1.0, 3.0], [0.0, 1.0], [1.0, 0.0]])
    assert agreement(got, want) == 0.75
    assert same_place(got, torch.tensor([1, 1, 1, 0])) == 0.75


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        (1.0, 1.0, 0),
        (1.0078125, 1.0, 1),
        (0.99609375, 1.0, 1),
        (2.0, 1.0, 128),
        (0.0, -0.0, 0),
        (2.0**-133, 0.0, 1),  # the least subnormal
        (2.0**-133, -(2.0**-133), 2),
        (-1.0078125, -1.0, 1),
        (INF, INF, 0),
        (-INF, -INF, 0),
        (INF, 3.3895314e38, INF),  # the largest bf16 is one pattern away
        (3.3895314e38, INF, INF),
        (-INF, INF, INF),
        (NAN, 1.0, NAN),
        (1.0, NAN, NAN),
        (NAN, NAN, NAN),
        (NAN, INF, NAN),
    ],
)
def test_bf16_steps(got: float, want: float, expected: float) -> None:
    assert bf16_steps(bf16(got), bf16(want)) == pytest.approx(expected, nan_ok=True)


def test_bf16_steps_of_any_nan_pattern_is_nan() -> None:
    quiet = torch.tensor([[0x7F81]], dtype=torch.int16).view(torch.bfloat16)
    assert math.isnan(bf16_steps(quiet, bf16(INF)))


def test_bf16_steps_takes_the_worst_element() -> None:
    assert bf16_steps(bf16(1.0, 1.015625, 1.0), bf16(1.0, 1.0, 1.0)) == 2


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([1.0, 1.0], [1.0, 1.0], 0.0),
        ([1.0, 1.0078125], [1.0, 1.0], 1.0),
        ([1.0, 0.0078125], [1.0, 0.0], 2.0),  # RMS sqrt(1/2), whose step is 2 ** -8
        ([4.0, 0.03125], [4.0, 0.0], 2.0),
        ([0.0, NAN], [0.0, 1.0], NAN),
    ],
)
def test_row_steps(got: list[float], want: list[float], expected: float) -> None:
    assert row_steps(fp32(*got), fp32(*want)) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([4.0, 1.0, 8.0, 0.0], [4.0, 2.0, 8.0, 0.0], 0.25),  # groups of two
        ([4.0, 2.0, 6.0, 0.0], [4.0, 2.0, 8.0, 0.0], 0.25),
        ([4.0, 2.0, 0.0, 0.0], [4.0, 2.0, 0.0, 0.0], 0.0),
        ([4.0, 2.0, 1.0, 0.0], [4.0, 2.0, 0.0, 0.0], INF),
        ([NAN, 2.0, 8.0, 0.0], [4.0, 2.0, 8.0, 0.0], NAN),
    ],
)
def test_group_share(got: list[float], want: list[float], expected: float) -> None:
    assert group_share(fp32(*got), fp32(*want), 2) == pytest.approx(expected, nan_ok=True)


def test_codes_apart_counts_neighbouring_codes() -> None:
    values = torch.zeros(1, 16)
    values[0, 0] = 6.0  # scale 1: codes are 0, 0.5, 1, 1.5, 2, 3, 4, 6
    want = values.clone()
    for got, expected in ((4.0, 1), (3.0, 2), (6.0, 0), (-0.5, 8)):
        other = want.clone()
        other[0, 0] = got
        assert codes_apart(values, other, want) == expected
    other = want.clone()
    other[0, 5] = NAN
    assert math.isnan(codes_apart(values, other, want))


EMPTY: dict[str, Callable[[], float]] = {
    "worst": lambda: worst(torch.empty(0)),
    "quantile": lambda: quantile(torch.empty(0), 0.9),
    "median": lambda: median(torch.empty(0).double()),
    "agreement": lambda: agreement(torch.empty(0, 4), torch.empty(0, 4)),
    "same_place": lambda: same_place(torch.empty(0, 4), torch.empty(0).long()),
    "bf16_steps": lambda: bf16_steps(torch.empty(0, 4), torch.empty(0, 4)),
    "row_steps": lambda: row_steps(torch.empty(0, 4), torch.empty(0, 4)),
    "group_share": lambda: group_share(torch.empty(0, 4), torch.empty(0, 4), 2),
    "differing": lambda: differing(torch.empty(0), torch.empty(0)).value,
}


@pytest.mark.parametrize("metric", EMPTY)
def test_nothing_passes_no_limit(metric: str) -> None:
    value = EMPTY[metric]()
    assert not Measure(metric, value, "<=", INF).passed
    assert not Measure(metric, value, ">=", 0).passed


WITH_NAN = torch.tensor([[1.0, 2.0], [NAN, 3.0]])
PLAIN = torch.tensor([[1.0, 2.0], [2.0, 3.0]])
NOT_A_NUMBER: dict[str, Callable[[Tensor, Tensor], float]] = {
    "worst relative": lambda got, want: worst(relative(got, want)),
    "quantile": lambda got, want: quantile(relative(got, want), 0.1),
    "median": lambda got, want: median(relative(got, want)),
    "agreement": agreement,
    "bf16_steps": bf16_steps,
    "row_steps": row_steps,
    "group_share": lambda got, want: group_share(got, want, 2),
}


@pytest.mark.parametrize("metric", NOT_A_NUMBER)
@pytest.mark.parametrize("sides", [(WITH_NAN, PLAIN), (PLAIN, WITH_NAN), (WITH_NAN, WITH_NAN)])
def test_one_nan_passes_no_limit(metric: str, sides: tuple[Tensor, Tensor]) -> None:
    value = NOT_A_NUMBER[metric](*sides)
    assert not Measure(metric, value, "<=", INF).passed
    assert not Measure(metric, value, ">=", 0).passed


COMPARISONS = {
    "close fp32": lambda got, want: close("x", "fp32", got, want),
    "close bf16": lambda got, want: close("x", "bf16", got.bfloat16(), want.bfloat16()),
    "absolute": lambda got, want: absolute("x", "fp32", got, want, INF),
    "equal": lambda got, want: equal("x", "fp32", got, want),
}


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparison(comparison: str) -> None:
    compare = COMPARISONS[comparison]
    ones = torch.ones(3, 2)
    assert compare(ones, ones).outcome == "passed"
    assert compare(ones * NAN, ones).outcome == "failed"
    assert compare(ones * NAN, ones * NAN).outcome == "failed"
    assert compare(torch.empty(0, 2), torch.empty(0, 2)).outcome == "failed"
    assert compare(torch.empty(3, 0), torch.empty(3, 0)).outcome == "failed"


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("shape", [(1, 2), (3, 1), (2, 2), (3, 2, 1), (1, 3, 2)])
def test_other_shapes_are_never_broadcast(comparison: str, shape: tuple[int, ...]) -> None:
    item = COMPARISONS[comparison](torch.ones(shape), torch.ones(3, 2))
    assert item.outcome == "failed"
    assert item.note == f"shape {list(shape)}, expected [3, 2]"


def test_equal_compares_by_value() -> None:
    assert equal("x", "fp32", fp32(0.0), fp32(-0.0)).outcome == "passed"
    assert equal("x", "fp32", torch.tensor([3]).int(), torch.tensor([3])).outcome == "passed"
    assert equal("x", "fp32", torch.tensor([3]), torch.tensor([4])).outcome == "failed"
