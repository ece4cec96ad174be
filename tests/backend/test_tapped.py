"""`Operators.tapped`: the same table, with someone watching."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer.backend import OPERATORS
from deepinfer.errors import UnsupportedOperatorError
from tests.backend.toys import Toys

Seen = list[tuple[str, tuple[Any, ...], Any]]


def test_inner_calls_of_a_composed_step_are_seen_before_the_step(toys: Toys) -> None:
    seen: Seen = []
    table = toys.resolve(toys.backend("chip", ["quantise"])).tapped(lambda *one: seen.append(one))
    table.norm_quantise("x", "w", 0.5, None)
    assert seen == [
        ("rms_norm", ("x", "w", 0.5), "reference.rms_norm"),
        ("quantise", ("reference.rms_norm", None), "chip.quantise"),
        ("norm_quantise", ("x", "w", 0.5, None), "chip.quantise"),
    ]


def test_native_step_is_seen_as_one(toys: Toys) -> None:
    seen: list[str] = []
    table = toys.resolve(toys.backend("chip", ["norm_quantise"])).tapped(
        lambda operator, arguments, result: seen.append(operator)
    )
    table.norm_quantise("x", "w", 0.5, None)
    assert seen == ["norm_quantise"]


def test_arguments_by_keyword_are_seen_in_order(toys: Toys) -> None:
    seen: Seen = []
    table = toys.resolve(toys.backend("chip", [])).tapped(lambda *one: seen.append(one))
    table.rms_norm("x", eps=0.5, weight="w")
    assert seen == [("rms_norm", ("x", "w", 0.5), "reference.rms_norm")]


def test_the_untapped_table_stays_untapped(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", []))
    seen: Seen = []
    table.tapped(lambda *one: seen.append(one))
    table.norm_quantise("x", "w", 0.5, None)
    assert seen == []


def test_two_taps_both_see_everything(toys: Toys) -> None:
    first: list[str] = []
    second: list[str] = []
    table = toys.resolve(toys.backend("chip", []))
    table = table.tapped(lambda operator, *rest: first.append(operator))
    table = table.tapped(lambda operator, *rest: second.append(operator))
    table.norm_quantise("x", "w", 0.5, None)
    assert first == second == ["rms_norm", "quantise", "norm_quantise"]


def test_bindings_and_services_are_the_same(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", [], collectives=lambda self: "ccl"))
    tapped = table.tapped(lambda *one: None)
    assert tapped.bindings == table.bindings
    assert tapped.summary() == table.summary()
    assert tapped.collectives() == "ccl"


def test_every_operator_is_tapped(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", []))
    tapped = table.tapped(lambda *one: None)
    assert all(getattr(tapped, name) != getattr(table, name) for name in OPERATORS)


def test_missing_operator_stays_an_error(toys: Toys) -> None:
    reference = toys.reference(without=["residual"])
    seen: Seen = []
    table = toys.resolve(toys.backend("chip", []), reference=reference)
    with pytest.raises(UnsupportedOperatorError, match="'residual' cannot run"):
        table.tapped(lambda *one: seen.append(one)).residual("target", "draft")
    assert seen == []
