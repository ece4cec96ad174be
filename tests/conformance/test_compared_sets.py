"""Sets are compared by the scores of the members that were exchanged."""

from __future__ import annotations

import pytest
import torch

from deepinfer.conformance.compare import Difference, compare
from deepinfer.conformance.tolerances import Metric, Tolerance

SCORES = [5.0, 4.0, 3.99, 1.0, float("-inf")]
LIMIT = Tolerance(Metric.SETS, 0.01, "a test")


def compared(got: list[int], want: list[int]) -> Difference:
    rows = [torch.tensor([row], dtype=torch.int32) for row in (got, want)]
    return compare("out", *rows, LIMIT, torch.tensor([SCORES]))


def test_equal_sets_use_nothing_of_the_limit() -> None:
    assert compared([0, 1, -1], [0, 1, -1]) == Difference(0.0)


def test_members_of_nearly_equal_scores_may_be_exchanged() -> None:
    found = compared([0, 2], [0, 1])
    assert found.kept
    assert found.used == pytest.approx(0.2, rel=1e-4)


def test_members_of_other_scores_may_not() -> None:
    found = compared([0, 3], [0, 1])
    assert "row 0 has [3] in place of [1]" in found.message


def test_a_member_that_nobody_may_choose_is_never_right() -> None:
    assert compared([0, 4], [0, 3]).used == float("inf")


@pytest.mark.parametrize("got", [[1, 0, -1], [0, 0, 1], [0, -1, 1], [0, 1, 5], [-2, 0, 1]])
def test_order_and_filling_are_exact(got: list[int]) -> None:
    assert "not ascending columns below 5" in compared(got, [0, 1, 2]).message


def test_one_member_fewer_fails() -> None:
    assert "has 1 members, expected 2" in compared([0, -1], [0, 1]).message


def test_scores_must_be_known() -> None:
    row = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="scores are known"):
        compare("out", row, row, LIMIT)
