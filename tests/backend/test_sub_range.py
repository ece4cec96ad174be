"""An operator that is native for a sub-range: who runs a call is decided by its sizes."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Backend, CallSpec, Contract, Support
from deepinfer.backend.base import DECLARATIONS
from deepinfer.backend.resolution import COMPOSED, FALLBACK, HOST, NATIVE, resolve
from deepinfer.engine import ModelRunner
from deepinfer.errors import UnsupportedOperatorError
from deepinfer_reference.backend import ReferenceBackend
from tests.backend.engines import logits, runner_on
from tests.backend.toys import Answers, Toys, norm_calls


def within(operator: str, **bounds: tuple[int, int]) -> Answers:
    """`supports` that answers one operator for a sub-range."""
    return lambda call: (
        Support.within("grid", **bounds) if call.operator == operator else Support.yes()
    )


def rows(count: int) -> Tensor:
    return torch.zeros(count, 64)


@pytest.mark.parametrize(
    ("count", "who"), [(2, "reference"), (3, "chip"), (5, "chip"), (6, "reference")]
)
def test_rows_decide(toys: Toys, count: int, who: str) -> None:
    chip = toys.backend("chip", ["rms_norm"], within("rms_norm", rows=(3, 5)))
    table = toys.resolve(chip, norm_calls(rows=8))
    assert table.rms_norm(rows(count), torch.ones(64), 0.0) == f"{who}.rms_norm"
    assert table.rms_norm(eps=0.0, x=rows(count), weight="w") == f"{who}.rms_norm"
    assert table.counts == {"rms_norm": {"native" if who == "chip" else "fallback": 2}}


def test_binding_and_summary_tell_of_the_sub_range(toys: Toys) -> None:
    chip = toys.backend("chip", ["rms_norm"], within("rms_norm", rows=(1, 7)))
    table = toys.resolve(chip, norm_calls(rows=8))
    binding = table.bindings["rms_norm"]
    assert (binding.provider, binding.remainder) == (NATIVE, FALLBACK)
    assert binding.bounds == (("rows", (1, 7)),)
    assert binding.reason.endswith("supported only for rows 1..7 (grid)")
    assert table.bounded() == [binding]
    assert table.summary().startswith("1 native (1 in a sub-range), ")


@pytest.mark.parametrize(("length", "who"), [(16, "chip"), (17, "reference")])
def test_length_decides(toys: Toys, length: int, who: str) -> None:
    call = CallSpec.of("store", {}, {"rows": (1, 8), "length": (1, 64)})
    chip = toys.backend("chip", ["store"], within("store", length=(1, 16)))
    batch = SimpleNamespace(max_context=length)
    assert toys.resolve(chip, [call]).store(rows(1), "r", "e", batch) == f"{who}.store"


def test_step_outside_its_range_is_composed(toys: Toys) -> None:
    chip = toys.backend("chip", ["norm_quantise", "quantise"], within("norm_quantise", rows=(1, 4)))
    table = toys.resolve(chip, norm_calls())
    assert table.bindings["norm_quantise"].remainder == COMPOSED
    for count in (4, 5):
        table.norm_quantise(rows(count), "w", 0.0, None)
    assert toys.log == ["chip.norm_quantise", "reference.rms_norm", "chip.quantise"]
    assert table.counts == {"norm_quantise": {NATIVE: 1, COMPOSED: 1}}


def test_inner_calls_of_a_step_outside_its_range_are_asked_about(toys: Toys) -> None:
    def supports(call: CallSpec) -> Support:
        if call.operator == "norm_quantise":
            return Support.within("grid", rows=(1, 4))
        return Support.no("never")

    chip = toys.backend("chip", ["norm_quantise", "quantise"], supports)
    assert toys.resolve(chip, norm_calls()).bindings["quantise"].provider == FALLBACK


def test_taps_see_both_sides(toys: Toys) -> None:
    chip = toys.backend("chip", ["norm_quantise"], within("norm_quantise", rows=(1, 4)))
    seen: list[str] = []
    table = toys.resolve(chip, norm_calls()).tapped(lambda name, args, result: seen.append(name))
    for count in (4, 5):
        table.norm_quantise(rows(count), "w", 0.0, None)
    assert seen == ["norm_quantise", "rms_norm", "quantise", "norm_quantise"]


def test_bounds_of_several_calls_are_intersected(toys: Toys) -> None:
    def supports(call: CallSpec) -> Support:
        return Support.within("grid", rows=(1, 6) if call.fact("width") == 64 else (3, 9))

    calls = [CallSpec.of("rms_norm", {"width": w}, {"rows": (1, 16)}) for w in (64, 128)]
    table = toys.resolve(toys.backend("chip", ["rms_norm"], supports), calls)
    assert table.bindings["rms_norm"].bounds == (("rows", (3, 6)),)


@pytest.mark.parametrize("bounds", [{"rows": (9, 12)}, {"pages": (1, 8)}, {"length": (1, 8)}])
def test_nothing_left_of_the_range_or_nothing_to_tell_it_by_is_a_no(
    toys: Toys, bounds: dict[str, tuple[int, int]]
) -> None:
    chip = toys.backend("chip", ["rms_norm"], within("rms_norm", **bounds))
    binding = toys.resolve(chip, norm_calls(rows=8)).bindings["rms_norm"]
    assert (binding.provider, binding.remainder) == (FALLBACK, "")
    (name,) = bounds
    assert f"supported only for {name}" in binding.reason


def test_outside_may_be_the_hosts(toys: Toys) -> None:
    chip = toys.backend(
        "chip",
        ["rms_norm"],
        within("rms_norm", rows=(1, 4)),
        supports_reference=lambda self, call: Support.no("no torch"),
    )
    host = toys.reference()
    table = resolve("chip", chip, toys.reference(), norm_calls(), False, lambda: host)
    assert table.bindings["rms_norm"].remainder == HOST
    for count in (4, 5, 6):
        table.rms_norm(rows(count), torch.ones(64), 0.0)
    assert table.counts == {"rms_norm": {NATIVE: 1, HOST: 2}}


def test_strict_forbids_a_remainder_of_the_reference(toys: Toys) -> None:
    chip = toys.backend("chip", ["rms_norm", "quantise"], within("rms_norm", rows=(1, 4)))
    with pytest.raises(
        UnsupportedOperatorError,
        match=r"'rms_norm' is not native .*would run it outside that range",
    ):
        toys.resolve(chip, norm_calls(), strict=True)


def test_strict_allows_a_remainder_composed_of_native_operators(toys: Toys) -> None:
    names = ["norm_quantise", "rms_norm", "quantise"]
    chip = toys.backend("chip", names, within("norm_quantise", rows=(1, 4)))
    assert toys.resolve(chip, norm_calls(), strict=True).providers(NATIVE) == sorted(names)


def test_what_the_reference_would_read_of_a_remainder_must_be_its_own(toys: Toys) -> None:
    call = CallSpec.of("linear", {}, {"rows": (1, 8)})
    chip = toys.backend("chip", ["pack_linear", "linear"], within("linear", rows=(1, 4)))
    with pytest.raises(UnsupportedOperatorError, match="'chip' packs weights itself"):
        toys.resolve(chip, [call])


@pytest.mark.parametrize("operator", sorted(DECLARATIONS))
def test_declared_paths_start_at_a_parameter(operator: str) -> None:
    declaration = DECLARATIONS[operator]
    parameters = inspect.signature(getattr(Contract, operator)).parameters
    paths = [declaration.rows, declaration.length, declaration.writes]
    assert {path.split(".")[0] for path in paths if path} <= set(parameters)
    assert bool(declaration.rows) != operator.startswith("pack_")


class Partial(Backend):
    """The reference's norm for few rows, and its attention for short contexts."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.inner = ReferenceBackend("cpu")

    def supports(self, call: CallSpec) -> Support:
        if call.operator == "rms_norm":
            return Support.within("one tile", rows=(1, 8))
        return Support.within("small table", length=(1, 16))

    def rms_norm(self, *arguments: Any) -> Tensor:
        return self.inner.rms_norm(*arguments)

    def attend(self, *arguments: Any) -> Tensor:
        return self.inner.attend(*arguments)


def test_both_sides_in_one_run_of_a_model_give_the_references_bits(
    small_runner: ModelRunner, expected_logits: Tensor
) -> None:
    runner = runner_on(Partial(), small_runner.checkpoint)
    assert torch.equal(logits(runner), expected_logits)
    layers = small_runner.config.text.num_hidden_layers
    counts = runner.operators.counts  # steps of 16 rows and of 5, contexts of 16 and of 21
    assert counts["attend"] == {NATIVE: layers, FALLBACK: layers}
    assert counts["rms_norm"][NATIVE] == counts["rms_norm"][FALLBACK] > layers
