"""A backend that breaks its word: the error carries its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deepinfer.backend import Backend, CallSpec, Support
from deepinfer.errors import BackendContractError, RequestError, UnsupportedOperatorError
from tests.backend.toys import Toys, no_to, norm_calls


def raising(error: BaseException) -> Callable[..., Any]:
    def body(backend: Backend, *args: object) -> object:
        raise error

    return body


def test_yes_that_then_raises_names_backend_and_operator(toys: Toys) -> None:
    chip = toys.backend("chip", [], rms_norm=raising(RuntimeError("launch failed")))
    table = toys.resolve(chip, norm_calls())
    with pytest.raises(
        BackendContractError,
        match="backend 'chip' accepted operator 'rms_norm' and then raised RuntimeError: launch",
    ) as caught:
        table.norm_quantise("x", "w", 0.0, None)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "DEEPINFER_ACCELERATOR=reference runs without it" in str(caught.value)


def test_native_step_that_raises_names_backend_and_step(toys: Toys) -> None:
    chip = toys.backend("chip", [], norm_quantise=raising(KeyError("tile")))
    with pytest.raises(BackendContractError, match="'chip' accepted operator 'norm_quantise'"):
        toys.resolve(chip).norm_quantise("x", "w", 0.0, None)


def test_primitive_left_out_that_a_native_step_calls_on_itself(toys: Toys) -> None:
    chip = toys.backend("chip", [], logits=lambda self, *args: self.rms_norm(*args))
    with pytest.raises(BackendContractError, match=r"'chip' .* 'logits' .* NotImplementedError"):
        toys.resolve(chip).logits("x", "w", 0.0)


@pytest.mark.parametrize("error", [IndexError("id 7 of 5"), RequestError("too long")])
def test_errors_of_the_contract_pass(toys: Toys, error: Exception) -> None:
    table = toys.resolve(toys.backend("chip", [], embed=raising(error)))
    with pytest.raises(type(error)) as caught:
        table.embed("table", "ids", "bf16")
    assert caught.value is error


def test_interrupts_pass(toys: Toys) -> None:
    table = toys.resolve(toys.backend("chip", [], embed=raising(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        table.embed("table", "ids", "bf16")


def test_fault_of_the_reference_does_not_name_the_backend(toys: Toys) -> None:
    reference = toys.backend("reference", [], rms_norm=raising(RuntimeError("bad input")))
    table = toys.resolve(toys.backend("chip", []), reference=reference)
    with pytest.raises(RuntimeError, match=r"^bad input$"):
        table.rms_norm("x", "w", 0.0)


def test_supports_that_raises_names_backend_and_call(toys: Toys) -> None:
    def supports(call: CallSpec) -> Support:
        raise KeyError("heads")

    with pytest.raises(
        BackendContractError,
        match=r"'chip' raised in supports\(rms_norm\(width=64, rows=1..8\)\): KeyError: 'heads'",
    ) as caught:
        toys.resolve(toys.backend("chip", ["rms_norm"], supports), norm_calls())
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("answer", [True, None, "yes"])
def test_supports_that_answers_something_else(toys: Toys, answer: object) -> None:
    with pytest.raises(
        BackendContractError, match=rf"'chip' answered supports\(rms_norm.* with {answer!r}"
    ):
        toys.resolve(toys.backend("chip", ["rms_norm"], lambda call: answer), norm_calls())


def test_operators_that_are_not_overridden_are_not_asked_about(toys: Toys) -> None:
    def supports(call: CallSpec) -> Support:
        raise AssertionError(call)

    table = toys.resolve(toys.backend("chip", ["linear"], supports), norm_calls())
    assert table.providers("native") == ["linear"]


def test_strict_shows_why_the_backend_said_no(toys: Toys) -> None:
    chip = toys.backend("chip", ["rms_norm", "quantise"], no_to("quantise", "no fp8 units"))
    with pytest.raises(UnsupportedOperatorError, match=r"'quantise' is not native.*no fp8 units"):
        toys.resolve(chip, norm_calls(), strict=True)
