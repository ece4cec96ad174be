"""Edges that the declared grids of the quick tier must hold, named one by one."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from deepinfer.backend import Fact
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.suite import generator_of


@cache
def grid(operator: str) -> tuple[Case, ...]:
    return tuple(SUITES[operator].grid(Tier.QUICK))


def having(operator: str, **wanted: Fact) -> list[Case]:
    """Quick cases of an operator with these facts, or value class."""
    return [
        case
        for case in grid(operator)
        if {**dict(case.facts), "values": case.values}.items() >= wanted.items()
    ]


ROWS = [name for name in SUITES if any("rows" in dict(case.facts) for case in grid(name))]
ROWS = [name for name in ROWS if not name.startswith("pack_")]
BATCHES = [name for name in SUITES if any("layout" in dict(case.facts) for case in grid(name))]


@pytest.mark.parametrize("operator", ROWS)
def test_no_row_one_row_and_tiles(operator: str) -> None:
    rows = {case.size("rows") for case in grid(operator)}
    assert {0, 1, 16, 17} <= rows


@pytest.mark.parametrize("operator", BATCHES)
def test_batches_without_rows_and_with_padding(operator: str) -> None:
    assert {"none", "padded", "drafts"} <= {str(case.fact("layout")) for case in grid(operator)}


@pytest.mark.parametrize("operator", ["compress", "update_context", "norm_rope_store"])
def test_lengths_around_a_ratio(operator: str) -> None:
    """0 is a batch without rows; r - 1 is 1, which completes nothing."""
    lengths = {case.size("length") for case in having(operator, ratio=2)}
    assert {1, 2, 3, 16, 17} <= lengths
    assert having(operator, layout="none")


@pytest.mark.parametrize("operator", ["store", "load", "attend"])
def test_last_pages_and_blocks_partly_filled(operator: str) -> None:
    """Pages of 4 and blocks of 16 tokens."""
    lengths = {case.size("length") for case in grid(operator)}
    assert {1, 3, 4, 5, 15, 16, 17, 33} <= lengths


@pytest.mark.parametrize(("operator", "sinks"), [("attend", 5), ("attend_output", 2)])
def test_rows_without_any_key_under_large_sinks_of_both_signs(operator: str, sinks: int) -> None:
    for dtype in ("bf16", "fp32"):
        cases = [case for case in having(operator, keys="none") if case.dtype == dtype]
        for selected in (0, 6):
            found = {case.fact("sink") for case in cases if case.fact("selected") == selected}
            assert len(found) == sinks
            assert {"high", "lowest"} <= found
    case = cases[0]
    span = SUITES[operator].inputs(case, generator_of(case))["span"]
    assert bool((span.last < span.first).any())


@pytest.mark.parametrize("operator", ["expert_mlp", "dispatch"])
def test_tokens_on_one_expert_on_few_and_on_none(operator: str) -> None:
    used = {}
    for pattern in ("one", "last", "few", "all"):
        case = having(operator, pattern=pattern)[0]
        ids = SUITES[operator].inputs(case, generator_of(case))["routing"].ids
        used[pattern] = sorted(set(ids.flatten().tolist()))
    assert used == {"one": [0], "last": [4], "few": [0, 1, 2, 3], "all": [0, 1]}


@pytest.mark.parametrize(("operator", "size"), [("embed", 61), ("gather", 61), ("pack_experts", 3)])
def test_minus_one_and_the_size_are_refused(operator: str, size: int) -> None:
    name = {"embed": "id", "gather": "row", "pack_experts": "slot"}[operator]
    found = {invalid.case.fact(name): invalid.raises for invalid in SUITES[operator].invalid()}
    assert found[-1] is found[size] is IndexError


@pytest.mark.parametrize(
    "operator",
    [
        name
        for name in SUITES
        if SUITES[name].nan_argument and name not in ("route", "top_logprobs")
    ],
)
def test_a_row_of_nan(operator: str) -> None:
    """The others have it in place of a row in their thorough cases only."""
    assert having(operator, values="nan_row") or having(operator, values="nan_entry")


def test_infinite_logits_of_both_signs() -> None:
    for operator, name in (("mask", "logits"), ("process", "logits"), ("top", "scores")):
        suite = SUITES[operator]
        cases = having(operator, values="infinite")
        found = [suite.inputs(case, generator_of(case))[name] for case in cases]
        for sign in (torch.inf, -torch.inf):
            assert any(bool((values == sign).any()) for values in found)
    for operator in ("process", "sample", "top_logprobs"):
        assert having(operator, values="masked")


@pytest.mark.parametrize(
    ("values", "operators"),
    [
        ("subnormal", ("rms_norm", "quantise", "store", "load", "mix", "collapse", "swiglu")),
        ("saturated", ("linear", "pack_linear", "pack_experts", "expert_mlp", "shared_mlp")),
        ("powers", ("pack_linear", "pack_experts", "expert_mlp", "shared_mlp", "mixture")),
        ("ties", ("quantise", "linear", "top", "best_blocks", "route", "process", "attend")),
        ("zeros", ("quantise", "linear", "attend", "top", "mix", "combine", "load")),
        ("extreme", ("rms_norm", "quantise", "rope", "linear", "attend", "process", "store")),
    ],
)
def test_values(values: str, operators: tuple[str, ...]) -> None:
    assert all(having(operator, values=values) for operator in operators)


def test_duplicates_and_minus_one() -> None:
    def inputs(operator: str, **facts: Fact) -> dict[str, torch.Tensor]:
        case = having(operator, **facts)[0]
        return SUITES[operator].inputs(case, generator_of(case))

    for ids in (inputs("embed", rows=15)["ids"], inputs("export", blocks=16)["blocks"]):
        assert len(set(ids.tolist())) < len(ids)
    loaded = inputs("load", layout="padded")
    assert int((loaded["entries"] == -1).sum())
    assert int((loaded["sequence"] == -1).sum())
    assert int((inputs("store", layout="padded")["entries"] == -1).sum())
