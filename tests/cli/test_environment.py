"""How the text of an environment variable is read."""

from __future__ import annotations

import pytest

from deepinfer.settings import environment

NAME = "DEEPINFER_TEST_VARIABLE"


@pytest.mark.parametrize("value", ["", "0", "false", "False"])
def test_switch_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)
    assert not environment.flag(NAME)


@pytest.mark.parametrize("value", ["1", "true", "yes", "no", "FALSE", "00"])
def test_switch_on(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)
    assert environment.flag(NAME)


def test_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    assert not environment.flag(NAME)
    assert environment.text(NAME) is None
    assert environment.names(NAME) == ()


def test_empty_text_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")
    assert environment.text(NAME) is None


def test_list_drops_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, " a, b ,,c,")
    assert environment.names(NAME) == ("a", "b", "c")


def test_names_are_spelt_alike() -> None:
    variables = [value for name, value in vars(environment).items() if name.isupper()]
    names = [value for value in variables if isinstance(value, str)]
    assert len(names) == len(set(names))
    assert all(name.startswith("DEEPINFER_") for name in names)
