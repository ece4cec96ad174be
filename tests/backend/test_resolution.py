"""Who runs what: the backend's own, the step's default body, or the reference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deepinfer.backend import OPERATORS, CallSpec, Support
from deepinfer.backend.device import Device
from deepinfer.backend.resolution import COMPOSED, FALLBACK, MISSING, NATIVE
from deepinfer.errors import UnsupportedOperatorError
from tests.backend.toys import PRIMITIVES, STEPS, Toys, no_to, norm_calls


def test_backend_of_nothing_is_the_reference_and_the_steps(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", []), norm_calls())
    assert table.providers(FALLBACK) == PRIMITIVES
    assert table.providers(COMPOSED) == STEPS
    assert table.norm_quantise("x", "w", 0.0, None) == "reference.quantise"
    assert toys.log == ["reference.rms_norm", "reference.quantise"]


def test_every_operator_is_bound_once(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["linear"]))
    assert set(table.bindings) == set(OPERATORS)
    assert all(binding.kind == OPERATORS[name] for name, binding in table.bindings.items())


def test_one_primitive(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["rms_norm"]), norm_calls())
    table.rms_norm("x", "w", 0.0)
    assert table.providers(NATIVE) == ["rms_norm"]
    assert toys.log == ["chip.rms_norm"]


def test_primitive_inside_a_step(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["quantise"]), norm_calls())
    table.norm_quantise("x", "w", 0.0, None)
    assert toys.log == ["reference.rms_norm", "chip.quantise"]


def test_primitive_two_steps_down(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["quantise", "mix"]))
    sub_layer = SimpleNamespace(site="site", norm="w", norm_eps=0.0)
    entered = table.enter("streams", "pre", sub_layer, None)
    assert (entered.mix, entered.activation) == ("chip.mix", "chip.quantise")
    assert toys.log == ["chip.mix", "reference.collapse", "reference.rms_norm", "chip.quantise"]


def test_native_step_calls_nothing_inside(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["norm_quantise"]), norm_calls())
    assert table.norm_quantise("x", "w", 0.0, None) == "chip.norm_quantise"
    assert toys.log == ["chip.norm_quantise"]


def test_native_step_inside_a_composed_one(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["norm_quantise"]))
    table.enter("streams", "pre", SimpleNamespace(site="s", norm="w", norm_eps=0.0), None)
    assert toys.log == ["reference.mix", "reference.collapse", "chip.norm_quantise"]


def test_each_call_runs_as_often_as_the_step_makes_it(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["linear", "pack_linear"]))
    weights = SimpleNamespace(w1="w1", w2="w2", w3="w3")
    table.shared_mlp(SimpleNamespace(dtype="bf16"), weights, 1.0, "ref")
    assert toys.log == ["chip.linear", "chip.linear", "reference.swiglu", "chip.linear"]


def test_inherited_operators_are_the_backends_own(toys: Toys) -> None:
    base = type(toys.backend("chip", ["rms_norm"]))
    derived = type("derived", (base,), {})("cpu")
    assert toys.resolve(derived).providers(NATIVE) == ["rms_norm"]


def test_no_falls_back_with_the_reason(toys: Toys) -> None:
    chip = toys.backend("chip", ["rms_norm"], no_to("rms_norm", "only width 128"))
    table = toys.resolve(chip, norm_calls())
    table.norm_quantise("x", "w", 0.0, None)
    assert toys.log == ["reference.rms_norm", "reference.quantise"]
    binding = table.bindings["rms_norm"]
    assert binding.provider == FALLBACK
    assert binding.reason == "rms_norm(width=64, rows=1..8): only width 128"


def test_no_to_a_step_composes_it(toys: Toys) -> None:
    chip = toys.backend("chip", ["norm_quantise", "quantise"], no_to("norm_quantise"))
    table = toys.resolve(chip, norm_calls())
    table.norm_quantise("x", "w", 0.0, None)
    assert toys.log == ["reference.rms_norm", "chip.quantise"]
    assert table.bindings["norm_quantise"].provider == COMPOSED
    assert "not on this chip" in table.bindings["norm_quantise"].reason


def test_one_refused_call_of_several_takes_the_operator(toys: Toys) -> None:
    def supports(call: CallSpec) -> Support:
        return Support.no("too wide") if call.fact("width") == 128 else Support.yes()

    calls = [CallSpec.of("rms_norm", {"width": width}) for width in (64, 128)]
    table = toys.resolve(toys.backend("chip", ["rms_norm"], supports), calls)
    assert table.bindings["rms_norm"].reason == "rms_norm(width=128): too wide"


def test_sub_range_that_covers_the_call(toys: Toys) -> None:
    chip = toys.backend("chip", ["rms_norm"], lambda call: Support.within("grid", rows=(1, 8)))
    table = toys.resolve(chip, norm_calls(rows=8))
    assert table.bindings["rms_norm"].provider == NATIVE


def test_backend_is_asked_once_for_each_call_that_is_made(toys: Toys) -> None:
    asked: list[CallSpec] = []

    def supports(call: CallSpec) -> Support:
        asked.append(call)
        return Support.yes()

    calls = norm_calls()
    toys.resolve(toys.backend("chip", ["rms_norm", "quantise"], supports), calls)
    assert sorted(map(str, asked)) == sorted(map(str, calls[1:]))


def test_calls_inside_a_native_step_are_not_made(toys: Toys) -> None:
    asked: list[str] = []

    def supports(call: CallSpec) -> Support:
        asked.append(call.operator)
        return no_to("rms_norm")(call)

    chip = toys.backend("chip", ["norm_quantise", "rms_norm"], supports)
    table = toys.resolve(chip, norm_calls(), strict=True)
    assert asked == ["norm_quantise"]
    assert table.bindings["norm_quantise"].provider == NATIVE


def test_calls_inside_a_step_of_a_native_step_are_not_made(toys: Toys) -> None:
    outer = CallSpec.of("enter", {"width": 64})
    inner = CallSpec.of("norm_quantise", {"width": 64}, step="enter")
    calls = [outer, inner, *norm_calls()[1:]]
    assert toys.resolve(toys.backend("chip", ["enter"]), calls, strict=True).summary() == (
        f"1 native, {len(STEPS) - 1} composed, {len(PRIMITIVES)} fallback, 0 host"
    )


def test_strict_forbids_every_fallback_that_the_model_needs_at_once(toys: Toys) -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        toys.resolve(toys.backend("chip", ["linear"]), norm_calls(), strict=True)
    assert str(caught.value).splitlines() == [
        "DEEPINFER_STRICT_OPERATORS=1 forbids a fallback, and backend 'chip' has 2; unset it to "
        "use them:",
        "  operator 'quantise' is not native (not overridden); the reference would run it. The "
        "model calls quantise(width=64, rows=1..8)",
        "  operator 'rms_norm' is not native (not overridden); the reference would run it. The "
        "model calls rms_norm(width=64, rows=1..8)",
    ]


def test_strict_allows_composed_steps_and_unused_fallbacks(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["rms_norm", "quantise"]), norm_calls(), strict=True)
    assert table.bindings["norm_quantise"].provider == COMPOSED
    assert table.bindings["linear"].provider == FALLBACK


def test_operator_that_nobody_has_and_nobody_calls_is_missing(toys: Toys) -> None:
    reference = toys.reference(without=["verify"])
    table = toys.resolve(toys.backend("chip", []), reference=reference)
    assert table.providers(MISSING) == ["verify"]
    with pytest.raises(UnsupportedOperatorError, match="'verify' cannot run: backend 'chip': not"):
        table.verify("target", "draft", "tokens", "seeds", "positions")


def test_operator_that_nobody_has_and_the_model_calls_is_an_error(toys: Toys) -> None:
    reference = toys.reference(without=["rms_norm"])
    with pytest.raises(
        UnsupportedOperatorError,
        match=r"'rms_norm' cannot run: backend 'chip': not overridden; reference: the reference "
        r"does not implement it. The model calls rms_norm\(width=64, rows=1..8\)",
    ):
        toys.resolve(toys.backend("chip", []), norm_calls(), reference=reference)


def test_call_that_backend_and_reference_refuse_is_an_error(toys: Toys) -> None:
    chip = toys.backend("chip", ["rms_norm"], no_to("rms_norm", "too narrow"))
    reference = toys.reference(supports=no_to("rms_norm", "too wide"))
    with pytest.raises(UnsupportedOperatorError, match=r"(?s)'chip': .*too narrow; .*too wide"):
        toys.resolve(chip, norm_calls(), reference=reference)


def test_summary_counts_the_providers(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", ["norm_quantise", "linear"]))
    expected = f"2 native, {len(STEPS) - 1} composed, {len(PRIMITIVES) - 1} fallback, 0 host"
    assert table.summary() == expected


def test_backend_and_reference_get_the_table_for_calls_of_their_own(toys: Toys) -> None:
    def mixture(self, *args: object) -> str:  # type: ignore[no-untyped-def]
        result: str = self.operators.norm_quantise("x", "w", 0.0, None)
        return result

    chip = toys.backend("chip", ["quantise"], mixture=mixture)
    reference = toys.reference()
    table = toys.resolve(chip, reference=reference)
    assert chip.operators is table
    assert reference.operators is table
    assert table.mixture(*"abcdefgh") == "chip.quantise"
    assert toys.log == ["reference.rms_norm", "chip.quantise"]


def test_services_are_the_backends(toys: Toys) -> None:
    chip = toys.backend("chip", [], collectives=lambda self: "ccl")
    table = toys.resolve(chip)
    assert (table.collectives(), table.device) == ("ccl", chip.device)
    public = {name for name in vars(Device) if not name.startswith("_")} - {"capture"}
    assert public <= set(vars(table))


def test_unknown_operator_in_the_calls(toys: Toys) -> None:
    with pytest.raises(ValueError, match="'rms_nrom' is not an operator of the contract"):
        toys.resolve(toys.backend("chip", []), [CallSpec.of("rms_nrom", {})])


@pytest.mark.parametrize("step", ["rms_norm", "block"])
def test_call_inside_what_is_not_a_step(toys: Toys, step: str) -> None:
    with pytest.raises(ValueError, match=f"'{step}' is not a step of the contract"):
        toys.resolve(toys.backend("chip", []), [CallSpec.of("rope", {}, step=step)])


LINEAR = [CallSpec.of("linear", {}), CallSpec.of("grouped_linear", {})]


def test_reference_cannot_read_what_the_backend_packs(toys: Toys) -> None:
    chip = toys.backend("chip", ["pack_linear", "linear"])
    with pytest.raises(
        UnsupportedOperatorError,
        match=r"'chip' packs weights itself .'pack_linear'., so the reference cannot run "
        "'grouped_linear' on them for it: not overridden",
    ):
        toys.resolve(chip, LINEAR)


def test_backend_that_packs_and_reads(toys: Toys) -> None:
    chip = toys.backend("chip", ["pack_linear", "linear", "grouped_linear"])
    assert len(toys.resolve(chip, LINEAR).providers(NATIVE)) == 3


def test_backend_that_packs_and_runs_the_only_reader_inside_a_step(toys: Toys) -> None:
    calls = [CallSpec.of("logits", {}), CallSpec.of("linear", {}, step="logits")]
    chip = toys.backend("chip", ["pack_linear", "logits"])
    assert toys.resolve(chip, calls).providers(NATIVE) == ["logits", "pack_linear"]


def test_backend_that_inherits_the_references_packing(toys: Toys) -> None:
    reference = toys.reference()
    chip = type("chip", (type(reference),), {"supports": lambda self, call: no_to("linear")(call)})
    table = toys.resolve(chip("cpu"), LINEAR, reference=reference)
    assert table.providers(FALLBACK) == ["linear"]
