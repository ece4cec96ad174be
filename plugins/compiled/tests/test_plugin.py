"""The hooks, and the calls that the operators take."""

from __future__ import annotations

import pytest

from deepinfer.backend import CallSpec
from deepinfer.backend.registry import Selected, select_backend

NAME = "compiled"


@pytest.fixture
def selected() -> Selected:
    """The installed backend, whether or not this machine has a compiler."""
    return select_backend(NAME, require=False)


def test_the_entry_point_is_found(selected: Selected) -> None:
    assert selected.spec.name == NAME
    assert selected.spec.distribution == f"deepinfer-{NAME}"


def test_native_operators(selected: Selected) -> None:
    assert selected.create().native_operators() == {"rms_norm", "collapse", "expand"}


@pytest.mark.parametrize(
    ("operator", "dtype", "supported"),
    [("rms_norm", "fp64", True), ("expand", "fp16", False), ("linear", "fp16", True)],
)
def test_precisions(selected: Selected, operator: str, dtype: str, supported: bool) -> None:
    answer = selected.create().supports(CallSpec.of(operator, {"dtype": dtype}))
    assert answer.supported is supported
    assert supported or answer.reason.startswith("dtype=fp16: ")
