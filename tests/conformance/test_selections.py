"""Comparison of selections: what explains a swapped entry, and what does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.conformance.golden.selections import (
    block_scores,
    entry_mask,
    kept_blocks,
    out_of_order,
    same_sets,
    swapped_entries,
)

INF, NAN = float("inf"), float("nan")


def rows(*values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def scores(*values: float) -> Tensor:
    return torch.tensor([values])


def swapped(got: list[int], want: list[int], *values: float, compute: str = "fp32") -> int:
    return swapped_entries(rows(got), rows(want), scores(*values), compute)


def test_equal_sets_need_no_scores() -> None:
    assert swapped_entries(rows([3, 1, -1]), rows([1, 3]), None, "fp32") == 0


def test_a_swap_is_explained_by_equal_scores() -> None:
    assert swapped([0, 2], [0, 1], 9, 5, 5) == 0
    assert swapped([0, 2], [0, 1], 9, 5, 4) == 2


def test_without_scores_no_swap_is_explained() -> None:
    assert swapped_entries(rows([0, 2]), rows([0, 1]), None, "bf16") == 2


def test_fp32_scores_may_differ_by_their_rounding() -> None:
    assert swapped([0, 2], [0, 1], 9, 1.0, 1.0 + 9e-6) == 0
    assert swapped([0, 2], [0, 1], 9, 1.0, 1.0 + 2e-5) == 2
    assert swapped([0, 2], [0, 1], 9, 0.0, 1e-30) == 2


@pytest.mark.parametrize("base", [1.0, 1.9921875, 2.0, -1.0, 0.01])
def test_bf16_scores_may_differ_by_two_steps(base: float) -> None:
    bits = torch.tensor(base, dtype=torch.bfloat16).view(torch.int16)
    steps = [float((bits + step).view(torch.bfloat16)) for step in range(4)]
    if base != 1.9921875:  # the steps after it are twice as long
        assert swapped([0, 2], [0, 1], 9, steps[0], steps[2], compute="bf16") == 0
    assert swapped([0, 2], [0, 1], 9, steps[0], steps[3], compute="bf16") == 2


def test_bf16_steps_are_those_of_the_larger_score() -> None:
    assert swapped([0, 2], [0, 1], 9, 1.9921875, 2.015625, compute="bf16") == 0
    assert swapped([0, 2], [0, 1], 9, 0.0, 0.0, compute="bf16") == 0
    assert swapped([0, 2], [0, 1], 9, 0.0, 1e-4, compute="bf16") == 2


def test_two_swaps_are_paired_by_rank() -> None:
    assert swapped([0, 1], [2, 3], 5, 7, 7, 5) == 0
    assert swapped([0, 1], [2, 3], 5, 7, 7, 6) == 2
    assert swapped([0, 1], [2, 3], 5, 7, 8, 6) == 4


@pytest.mark.parametrize("got", [[0, -1], [0, 1, 2], [-1, -1]])
def test_other_counts_are_not_explained(got: list[int]) -> None:
    assert swapped(got, [0, 1], 5, 5, 5) > 0


def test_an_entry_twice_is_not_a_set() -> None:
    assert swapped([0, 1, 1], [0, 1, -1], 5, 5, 5) == 1
    assert swapped([0, 0], [0, 1], 5, 5, 5) > 0
    assert swapped_entries(rows([4, 4]), rows([4]), None, "fp32") == 1


@pytest.mark.parametrize("entry", [-2, 3, 100])
def test_an_index_of_no_entry_is_not_explained(entry: int) -> None:
    assert swapped([0, entry], [0, 1], 5, 5, 5) == 2


@pytest.mark.parametrize("score", [NAN, INF, -INF])
def test_only_finite_scores_explain(score: float) -> None:
    assert swapped([0, 2], [0, 1], 9, score, score) == 2
    assert swapped([0, 2], [0, 1], 9, 5, score) == 2


def test_every_row_counts() -> None:
    got, want = rows([0], [1], [2]), rows([0], [2], [1])
    assert swapped_entries(got, want, torch.tensor([[1.0, 2.0, 3.0]] * 3), "fp32") == 4


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ([0, 1, 5], 0),
        ([0, 5, -1], 0),
        ([-1, -1, -1], 0),
        ([5, 0, -1], 1),
        ([1, 1, -1], 1),
        ([-1, 0, 1], 1),
        ([0, -1, 1], 1),
    ],
)
def test_order(row: list[int], wrong: int) -> None:
    assert out_of_order(rows(row)) == wrong
    assert out_of_order(rows([0, 1, 2], row)) == wrong


def test_same_sets_judges_order_only_where_it_is_asked_for() -> None:
    got, want = rows([2, 1]), rows([1, 2])
    assert same_sets("x", "fp32", got, want, None).outcome == "failed"
    assert same_sets("x", "fp32", got, want, None, ascending=False).outcome == "passed"


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (rows([0, 1]), rows([0, 1], [0, 1])),
        (rows([0, 1], [0, 1]), rows([0, 1])),
        (torch.tensor([0, 1]), rows([0, 1])),
    ],
)
def test_other_shapes_fail(got: Tensor, want: Tensor) -> None:
    item = same_sets("x", "fp32", got, want, None)
    assert item.outcome == "failed"
    assert "shape" in item.note


@pytest.mark.parametrize("want", [torch.empty(0, 4), torch.empty(3, 0), torch.full((3, 4), -1)])
def test_nothing_selected_is_nothing_compared(want: Tensor) -> None:
    item = same_sets("x", "fp32", want.int(), want.int(), None)
    assert item.outcome == "failed"
    assert "nothing to compare" in item.note


def test_kept_blocks_are_those_that_the_mask_touches() -> None:
    mask = torch.tensor([[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 1, 0]], dtype=torch.bool)
    assert kept_blocks(mask, 2, 3).tolist() == [[0, 2, -1], [-1, -1, -1], [1, -1, -1]]


def test_a_mask_of_too_many_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="touches 3 blocks of 2, allowed: 2"):
        kept_blocks(torch.ones(1, 5, dtype=torch.bool), 2, 2)


def test_entry_mask_is_the_inverse() -> None:
    mask = entry_mask(rows([0, 2, -1]), 2, 5)
    assert mask.tolist() == [[True, True, False, False, True]]


def test_the_block_of_the_last_visible_entry_stands_above_all() -> None:
    values = torch.tensor([[3.0, 1.0, 2.0, -INF, -INF], [-INF] * 5])
    assert block_scores(values, 2).tolist() == [[3.0, INF, -INF], [-INF] * 3]


def test_a_forced_block_is_not_swapped_for_an_equal_score() -> None:
    values = block_scores(torch.zeros(1, 6), 2)
    assert swapped_entries(rows([0, 1]), rows([0, 2]), values, "fp32") == 2
    assert swapped_entries(rows([1, 2]), rows([0, 2]), values, "fp32") == 0
