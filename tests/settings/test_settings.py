"""`Settings`: read once, typed, immutable, and errors that say what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from deepinfer.errors import UsageError
from deepinfer.settings.catalogue import VARIABLES
from deepinfer.settings.settings import Origin, Settings

STRICT = "DEEPINFER_STRICT_OPERATORS"
DENIED = "DEEPINFER_DECODE_TOKEN_BLACKLIST"
PORT = "DEEPINFER_PROFILE_HTTP_PORT_BASE"
RATIO = "DEEPINFER_NUM_STATE_SLOTS_RATIO"
PAD = "DEEPINFER_ENGRAM_PAD_TOKEN"
DIRECTORY = "DEEPINFER_HF_MODEL_DIR"


def test_empty_environment_gives_the_defaults() -> None:
    settings = Settings.from_environment({})
    assert {name: settings.value(name) for name in VARIABLES} == {
        name: variable.default for name, variable in VARIABLES.items()
    }
    assert {settings.origin(name) for name in VARIABLES} == {Origin.DEFAULT}


def test_value_and_origin_of_a_set_variable() -> None:
    settings = Settings.from_environment({DIRECTORY: "model"})
    assert settings.value(DIRECTORY) == "model"
    assert settings.origin(DIRECTORY) is Origin.ENVIRONMENT


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, "model")
    assert Settings.from_environment().text(DIRECTORY) == "model"


def test_later_changes_of_the_environment_are_not_seen() -> None:
    environ = {STRICT: "1"}
    settings = Settings.from_environment(environ)
    environ[STRICT] = "0"
    assert settings.flag(STRICT)


def test_settings_cannot_be_changed() -> None:
    settings = Settings.from_environment({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.unknown = ("X",)  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.readings[STRICT] = settings.reading(STRICT)  # type: ignore[index]


def test_typed_values() -> None:
    settings = Settings.from_environment(
        {STRICT: "yes", PORT: "80", RATIO: "2", PAD: "7", DENIED: "0..3,9"}
    )
    assert settings.flag(STRICT) is True
    assert (settings.integer(PORT), settings.number(RATIO)) == (80, 2.0)
    assert settings.optional_integer(PAD) == 7
    assert settings.token_ranges(DENIED) == ((0, 3), (9, 9))


def test_unset_values() -> None:
    settings = Settings.from_environment({})
    assert settings.optional_integer(PAD) is None
    assert settings.text(DIRECTORY) is None
    assert settings.token_ranges(DENIED) == ()


@pytest.mark.parametrize("helper", ["flag", "integer", "number", "text", "names", "token_ranges"])
def test_value_asked_for_as_another_kind(helper: str) -> None:
    wrong = {"flag": PORT, "integer": STRICT, "number": STRICT, "text": PORT, "names": PORT}
    wrong["token_ranges"] = PORT
    with pytest.raises(TypeError, match=wrong[helper]):
        getattr(Settings.from_environment({}), helper)(wrong[helper])


def test_name_that_nobody_registers_is_a_programmers_error() -> None:
    with pytest.raises(KeyError, match="DEEPINFER_NONE is no registered variable"):
        Settings.from_environment({}).value("DEEPINFER_NONE")


def test_error_names_variable_value_and_what_is_allowed() -> None:
    with pytest.raises(UsageError) as raised:
        Settings.from_environment({PORT: "70000"})
    assert str(raised.value) == (
        f"{PORT} is '70000'; allowed: an integer from 1 to 65535; unset it for the default"
    )


def test_every_wrong_variable_is_named_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        Settings.from_environment({PORT: "x", RATIO: "y", STRICT: "z"})
    lines = str(raised.value).splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted([PORT, RATIO])


def test_unknown_names_of_ours_are_kept_and_others_are_not() -> None:
    settings = Settings.from_environment({"DEEPINFER_NONE": "1", "PATH": "x", "deepinfer_x": "1"})
    assert settings.unknown == ("DEEPINFER_NONE",)


def test_values_are_not_in_the_representation() -> None:
    assert "secret" not in repr(Settings.from_environment({DIRECTORY: "secret"}))
