"""Operators that a backend declares and the contract does not have: an error at creation."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer.backend import Backend
from deepinfer.backend.operators import primitive, step
from deepinfer.backend.registry import select_backend
from deepinfer.errors import BackendContractError
from tests.backend.conftest import Install
from tests.backend.plugins import entry


def created(install: Install, **members: Any) -> Backend:
    """A backend with these members, created through the registry."""
    cls = type("Chip", (Backend,), members)
    install(entry("chip", create=lambda mode, device: cls(device)))
    return select_backend("chip").create()


def refused(install: Install, **members: Any) -> str:
    with pytest.raises(BackendContractError) as caught:
        created(install, **members)
    message = str(caught.value)
    assert message.startswith("backend 'chip' (distribution dist-chip 1.5, file missing: ")
    return message


@pytest.mark.parametrize("promise", ["batch_invariant", "nondeterministic"])
def test_promise_about_an_unknown_operator_names_the_nearest(
    install: Install, promise: str
) -> None:
    message = refused(install, **{promise: frozenset({"rms_norm", "rms_nrom"})})
    assert f"{promise} names an unknown operator 'rms_nrom'; did you mean 'rms_norm'?" in message


def test_without_a_near_name_all_are_listed(install: Install) -> None:
    message = refused(install, nondeterministic=frozenset({"zzz"}))
    assert "'zzz'; expected one of advance, attend, " in message


def test_promise_of_the_wrong_type(install: Install) -> None:
    message = refused(install, nondeterministic="rms_norm")
    assert "nondeterministic is a str, expected a frozenset of names of operators" in message


@pytest.mark.parametrize(("mark", "kind"), [(primitive, "primitive"), (step, "step")])
def test_marked_method_that_is_no_operator(install: Install, mark: Any, kind: str) -> None:
    def rms_norms(self: Backend) -> None: ...

    message = refused(install, rms_norms=mark()(rms_norms))
    assert f"method 'rms_norms' ({__file__}:" in message
    assert f"is marked as a {kind} and the contract has no such operator" in message
    assert "did you mean 'rms_norm'?" in message


def test_misspelt_method_with_the_arguments_of_an_operator(install: Install) -> None:
    def rms_nrom(self: Backend, x: Any, weight: Any, eps: float) -> None: ...

    message = refused(install, rms_nrom=rms_nrom)
    assert "'rms_nrom'" in message
    assert "did you mean 'rms_norm'?" in message


def test_helpers_are_no_operators(install: Install) -> None:
    def rms_nrom(self: Backend, x: Any) -> None: ...

    def _rms_norm(self: Backend, x: Any, weight: Any, eps: float) -> None: ...

    created(
        install, rms_nrom=rms_nrom, _rms_norm=_rms_norm, nondeterministic=frozenset({"rms_norm"})
    )
