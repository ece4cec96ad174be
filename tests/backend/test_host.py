"""The host runs what the device cannot: copies there and back, writes in place, packed weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deepinfer.backend import OPERATORS, Activation, Backend, CallSpec, PackedLinear, Support
from deepinfer.backend.resolution import FALLBACK, HOST, NATIVE, Operators, resolve
from deepinfer.backend.values import LinearSource, PackedExperts
from deepinfer.engine import ModelRunner
from deepinfer.errors import BackendContractError, UnsupportedOperatorError
from deepinfer_reference.backend import ReferenceBackend
from tests.backend.engines import logits, runner_on
from tests.backend.toys import Toys, no_to, norm_calls


class Apart(Backend):
    """Its memory is not the host's: nothing arrives but by the two copies."""

    refused: frozenset[str] = frozenset(OPERATORS)

    def __init__(self) -> None:
        super().__init__("cpu")
        self.copies = 0

    def to_host(self, tensor: Tensor) -> Tensor:
        self.copies += 1
        return tensor.clone()

    def from_host(self, tensor: Tensor) -> Tensor:
        self.copies += 1
        return tensor.clone()

    def supports_reference(self, call: CallSpec) -> Support:
        return Support.no("no torch here") if call.operator in self.refused else Support.yes()


def with_host(
    toys: Toys, calls: list[CallSpec], host: Backend | None = None, strict: bool = False
) -> Operators:
    chip = toys.backend("chip", [], supports_reference=lambda self, call: no_to("rms_norm")(call))
    host = host or toys.backend("host", ["rms_norm"])
    return resolve("chip", chip, toys.reference(), calls, strict, lambda: host)


def test_host_runs_what_the_device_refuses(toys: Toys) -> None:
    table = with_host(toys, norm_calls())
    assert table.norm_quantise("x", "w", 0.0, None) == "reference.quantise"
    assert toys.log == ["host.rms_norm", "reference.quantise"]
    assert table.providers(HOST) == ["rms_norm"]
    assert table.bindings["rms_norm"].reason == (
        "not overridden; reference: rms_norm(width=64, rows=1..8): not on this chip"
    )
    assert table.summary().endswith(" fallback, 1 host")
    assert table.counts == {"rms_norm": {HOST: 1}}


def test_host_runs_what_the_reference_refuses_on_the_device(toys: Toys) -> None:
    reference = toys.reference(supports=no_to("quantise"))
    host = toys.reference()
    table = resolve("chip", toys.backend("chip", []), reference, norm_calls(), False, lambda: host)
    assert table.providers(HOST) == ["quantise"]


def test_host_is_not_made_where_nothing_needs_it(toys: Toys) -> None:
    def host() -> Backend:
        raise AssertionError

    resolve("chip", toys.backend("chip", []), toys.reference(), norm_calls(), False, host)


def test_what_the_host_refuses_too_cannot_run(toys: Toys) -> None:
    host = toys.backend("host", ["rms_norm"], no_to("rms_norm", "too wide for all"))
    with pytest.raises(
        UnsupportedOperatorError, match=r"(?s)not on this chip.*on the host: .*wide"
    ):
        with_host(toys, norm_calls(), host)


def test_device_that_raises_about_the_reference_is_named(toys: Toys) -> None:
    def supports_reference(chip: Backend, call: CallSpec) -> Support:
        raise KeyError("dtype")

    chip = toys.backend("chip", [], supports_reference=supports_reference)
    with pytest.raises(BackendContractError, match=r"'chip' raised in supports_reference\("):
        toys.resolve(chip, norm_calls())


def test_strict_forbids_the_host(toys: Toys) -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        with_host(toys, norm_calls(), strict=True)
    assert "'quantise' is not native (not overridden); the reference would" in str(caught.value)
    assert "the reference would run it on the host. The model" in str(caught.value)


def test_host_is_refused_inside_a_capture(toys: Toys) -> None:
    def capture(chip: Backend, function: Callable[[], None]) -> Callable[[], None]:
        function()
        return function

    chip = toys.backend(
        "chip",
        ["quantise"],
        capture=capture,
        supports_reference=lambda self, call: no_to("rms_norm")(call),
    )
    host = toys.backend("host", ["rms_norm"])
    table = resolve("chip", chip, toys.reference(), norm_calls(), False, lambda: host)
    assert table.capture(lambda: table.quantise("x", None)) is not None
    tapped = table.tapped(lambda operator, arguments, result: None)
    for one in (table, tapped):
        with pytest.raises(
            UnsupportedOperatorError, match="'rms_norm' runs on the host and cannot"
        ):
            one.capture(lambda one=one: one.norm_quantise("x", "w", 0.0, None))
    assert table.rms_norm("x", "w", 0.0) == "host.rms_norm"  # outside again


def test_all_of_a_model_on_the_host_gives_the_references_bits(
    small_runner: ModelRunner, expected_logits: Tensor
) -> None:
    chip = Apart()
    runner = runner_on(chip, small_runner.checkpoint)
    assert torch.equal(logits(runner), expected_logits)
    assert runner.operators.counts["store"] == {HOST: 2 * (6 + 2 * 2)}
    assert chip.copies > 1000
    called = [
        name for name, binding in runner.operators.bindings.items() if HOST in binding.providers
    ]
    assert {"attend", "compress", "expert_mlp", "pack_linear", "pack_experts"} <= set(called)


class Marked(PackedLinear):
    """What a chip packed: the reference's, behind a name that the reference does not know."""

    def __init__(self, inner: PackedLinear) -> None:
        self.inner = inner
        self.shape, self.kind = inner.shape, inner.kind


class OwnLinear(Apart):
    """Packs matrices itself and multiplies them itself, but has no grouped matmul."""

    refused = frozenset({"grouped_linear", "expert_mlp"})

    def __init__(self) -> None:
        super().__init__()
        self.inner = ReferenceBackend("cpu")

    def pack_linear(self, source: LinearSource) -> PackedLinear:
        return Marked(self.inner.pack_linear(source))

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        assert isinstance(w, Marked)
        return self.inner.linear(a, w.inner, out_dtype)


def test_weights_are_packed_twice_where_device_and_host_read_them(
    small_runner: ModelRunner, expected_logits: Tensor
) -> None:
    runner = runner_on(OwnLinear(), small_runner.checkpoint)
    bindings = runner.operators.bindings
    assert bindings["pack_linear"].provider == bindings["linear"].provider == NATIVE
    assert bindings["grouped_linear"].provider == HOST
    assert torch.equal(logits(runner), expected_logits)


class OwnLinearInARange(OwnLinear):
    """Its matmuls are for few rows."""

    refused = frozenset({"linear", "grouped_linear"})

    def supports(self, call: CallSpec) -> Support:
        return Support.within("one tile", rows=(1, 8))


def test_device_and_host_share_a_matmul_by_rows(
    small_runner: ModelRunner, expected_logits: Tensor
) -> None:
    runner = runner_on(OwnLinearInARange(), small_runner.checkpoint)
    assert torch.equal(logits(runner), expected_logits)  # steps of 16 rows and of 5
    ran = runner.operators.counts["linear"]
    assert ran[NATIVE] > 10
    assert ran[HOST] > 10


def test_host_packs_alone_what_only_the_host_reads(small_runner: ModelRunner) -> None:
    runner = runner_on(OwnLinear(), small_runner.checkpoint)
    bindings = runner.operators.bindings
    assert (bindings["expert_mlp"].provider, bindings["pack_experts"].provider) == (HOST, HOST)
    assert isinstance(runner.backbone.weights.layers[0].experts, PackedExperts)
    assert bindings["pack_table"].provider == FALLBACK
