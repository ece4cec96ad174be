"""Verdicts, counts, the closing line and JSON."""

from __future__ import annotations

import json

import pytest

from deepinfer.conformance.golden.comparison import attempt
from deepinfer.conformance.golden.logits import allow_one
from deepinfer.conformance.golden.report import GoldenReport, Item, Measure

NAN, INF = float("nan"), float("inf")


def item(value: float, limit: float = 1.0) -> Item:
    return Item.of("x", "fp32", Measure("m", value, "<=", limit))


PASSED, FAILED = item(0.5), item(2.0)
DRAFT = Item.uncovered("d", "draft", "not built yet")
TEXT = Item.uncovered("t", "text", "no check reads it")


@pytest.mark.parametrize(
    ("value", "sense", "passed"),
    [
        (1.0, "<=", True),
        (1.0, ">=", True),
        (1.1, "<=", False),
        (0.9, ">=", False),
        (NAN, "<=", False),
        (NAN, ">=", False),
        (INF, "<=", False),
    ],
)
def test_measure(value: float, sense: str, passed: bool) -> None:
    assert Measure("m", value, sense, 1.0).passed is passed


def test_an_item_needs_all_of_its_measures() -> None:
    good, bad = Measure("m", 0, "<=", 1), Measure("m", 2, "<=", 1)
    assert Item.of("x", "fp32", good, good).outcome == "passed"
    assert Item.of("x", "fp32", good, bad).outcome == "failed"


def test_an_item_without_measure_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Item.of("x", "fp32")


@pytest.mark.parametrize(
    ("items", "require_all", "summary", "code"),
    [
        ([PASSED, PASSED], False, "covered 2, failed 0, not covered 0", 0),
        ([PASSED, FAILED], False, "covered 2, failed 1, not covered 0", 1),
        ([PASSED, DRAFT], False, "covered 1, failed 0, not covered 1", 0),
        ([PASSED, DRAFT], True, "covered 1, failed 1, not covered 1", 1),
        ([PASSED, TEXT], False, "covered 1, failed 1, not covered 1", 1),
        ([PASSED, TEXT], True, "covered 1, failed 1, not covered 1", 1),
        ([PASSED, Item.broken("x", "fp32", "why")], False, "covered 2, failed 1, not covered 0", 1),
        ([DRAFT], False, "covered 0, failed 0, not covered 1", 1),
        ([], False, "covered 0, failed 0, not covered 0", 1),
    ],
)
def test_closing_line_and_exit_code(
    items: list[Item], require_all: bool, summary: str, code: int
) -> None:
    report = GoldenReport(items, require_all)
    assert (report.summary(), report.exit_code) == (summary, code)


def test_json_has_no_word_for_nan() -> None:
    items = [item(NAN), item(INF), PASSED]
    text = json.dumps([one.to_dict() for one in items], allow_nan=False)
    values = [one["measures"][0]["value"] for one in json.loads(text)]
    assert values == ["nan", "inf", 0.5]


def test_lines() -> None:
    assert str(PASSED) == "passed      fp32 x [m 0.5 <= 1]"
    assert str(TEXT) == "not covered      t (no check reads it)"
    assert str(Item.broken("x", "bf16", "why")) == "failed      bf16 x (why)"


def test_one_prompt_may_exceed_its_limits_in_fp32() -> None:
    items = allow_one([PASSED, FAILED, PASSED], "fp32")
    assert [one.outcome for one in items] == ["passed", "allowed", "passed"]
    assert items[1].note == "one exception per checkpoint"
    assert GoldenReport(items).summary() == "covered 3, failed 0, not covered 0"


@pytest.mark.parametrize(
    ("items", "compute"),
    [
        ([PASSED, FAILED, FAILED], "fp32"),  # two of them
        ([PASSED, FAILED], "bf16"),
        ([FAILED], "fp32"),  # no other prompt keeps the rule
        ([PASSED, item(NAN)], "fp32"),
        ([PASSED, item(INF)], "fp32"),
        ([PASSED, Item.broken("x", "fp32", "shape")], "fp32"),
    ],
)
def test_no_other_failure_is_allowed(items: list[Item], compute: str) -> None:
    assert allow_one(list(items), compute) == items


def test_an_exception_ends_a_check_with_a_failed_item() -> None:
    def check() -> list[Item]:
        raise KeyError("p1.ids")

    def begun():  # type: ignore[no-untyped-def]
        yield PASSED
        raise RuntimeError("shapes\nand more")

    assert list(attempt("x", "fp32", check)) == [Item.broken("x", "fp32", "KeyError: 'p1.ids'")]
    assert list(attempt("x", "fp32", begun)) == [
        PASSED,
        Item.broken("x", "fp32", "RuntimeError: shapes"),
    ]
