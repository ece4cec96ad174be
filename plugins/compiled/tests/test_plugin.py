"""The hooks, and the calls that the operators take."""

from __future__ import annotations

import pytest

from deepinfer.backend import CallSpec, Fact
from deepinfer.backend.registry import Selected, select

NAME = "compiled"


@pytest.fixture
def selected() -> Selected:
    """The installed backend, whether or not this machine has a compiler."""
    return select(NAME, require=False)


def test_the_entry_point_is_found(selected: Selected) -> None:
    assert selected.spec.name == NAME
    assert selected.spec.distribution == f"deepinfer-{NAME}"


def test_native_operators(selected: Selected) -> None:
    assert selected.create().native_operators() == {"rms_norm", "collapse", "expand"}


@pytest.mark.parametrize(
    ("operator", "changed", "supported"),
    [
        ("rms_norm", {"width": 2}, True),
        ("rms_norm", {"width": 1}, False),
        ("collapse", {"streams": 1}, False),
        ("expand", {"dtype": "fp16"}, False),
        ("linear", {"dtype": "fp16"}, True),
    ],
)
def test_calls(
    selected: Selected, operator: str, changed: dict[str, Fact], supported: bool
) -> None:
    facts: dict[str, Fact] = {"dtype": "bf16", "streams": 4, "width": 64, **changed}
    answer = selected.create().supports(CallSpec.of(operator, facts))
    assert answer.supported is supported
    if not supported:
        ((name, value),) = changed.items()
        assert answer.reason.startswith(f"{name}={value}: ")
