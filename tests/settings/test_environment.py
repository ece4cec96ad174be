"""One variable read now: by the kind and the default of the catalogue."""

from __future__ import annotations

import pytest

from deepinfer.settings import environment
from deepinfer.settings.catalogue import VARIABLES

SWITCH = environment.STRICT_OPERATORS
TEXT = environment.MODEL_DIRECTORY
NAMES = environment.SKIP_BACKENDS


@pytest.mark.parametrize("value", ["", "0", "false", "False"])
def test_switch_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(SWITCH, value)
    assert not environment.flag(SWITCH)


@pytest.mark.parametrize("value", ["1", "true", "yes", "no", "FALSE", "00"])
def test_switch_on(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(SWITCH, value)
    assert environment.flag(SWITCH)


def test_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SWITCH, TEXT, NAMES):
        monkeypatch.delenv(name, raising=False)
    assert not environment.flag(SWITCH)
    assert environment.text(TEXT) is None
    assert environment.names(NAMES) == ()


def test_empty_text_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEXT, "")
    assert environment.text(TEXT) is None


def test_list_drops_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMES, " a, b ,,c,")
    assert environment.names(NAMES) == ("a", "b", "c")


def test_another_variable_with_a_wrong_value_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEEPINFER_GC_INTERVAL_STEP", "often")
    monkeypatch.setenv(TEXT, "model")
    assert environment.text(TEXT) == "model"


def test_a_name_that_nobody_registers_is_a_programmers_error() -> None:
    with pytest.raises(KeyError, match="DEEPINFER_TEST_VARIABLE"):
        environment.text("DEEPINFER_TEST_VARIABLE")


def test_a_constant_names_one_variable_each() -> None:
    constants = [value for name, value in vars(environment).items() if name.isupper()]
    assert len(constants) == len(set(constants))
    assert set(constants) <= set(VARIABLES)
