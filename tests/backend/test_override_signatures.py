"""The arguments of an override are those of the contract, checked when a backend is created."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from deepinfer.backend.declarations import check_declarations
from deepinfer.errors import BackendContractError
from deepinfer_reference.backend import ReferenceBackend


class OtherOrder(ReferenceBackend):
    def rms_norm(self, weight: Tensor, x: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        return x


class OtherName(ReferenceBackend):
    def rms_norm(self, x: Tensor, scale: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        return x


class OneLess(ReferenceBackend):
    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        return x


class OneMore(ReferenceBackend):
    def rms_norm(  # type: ignore[override]
        self, x: Tensor, weight: Tensor, eps: float, stream: int
    ) -> Tensor:
        return x


class OnlyByPlace(ReferenceBackend):
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, /) -> Tensor:
        return x


@pytest.mark.parametrize("backend", [OtherOrder, OtherName, OneLess, OneMore, OnlyByPlace])
def test_other_arguments_are_refused_with_both(backend: type[ReferenceBackend]) -> None:
    with pytest.raises(BackendContractError) as refused:
        check_declarations(backend("cpu"), "backend 'chip'")
    message = str(refused.value)
    assert message.startswith("backend 'chip': operator 'rms_norm' (")
    assert "test_override_signatures.py:" in message
    assert "the contract's takes (self, x, weight, eps)" in message


class WithDefault(ReferenceBackend):
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, stream: int = 0) -> Tensor:
        return x


class TakesWhatComes(ReferenceBackend):
    def rms_norm(self, *arguments: Any, **named: Any) -> Tensor:
        return super().rms_norm(*arguments, **named)


@pytest.mark.parametrize("backend", [ReferenceBackend, WithDefault, TakesWhatComes])
def test_what_can_be_called_as_the_contract_says(backend: type[ReferenceBackend]) -> None:
    check_declarations(backend("cpu"), "backend 'chip'")
