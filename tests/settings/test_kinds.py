"""How the text of a variable becomes a value."""

from __future__ import annotations

import pytest

from deepinfer.settings.kinds import (
    NAMES,
    NUMBERS,
    PATH,
    SWITCH,
    TEXT,
    TOKEN_RANGES,
    Kind,
    Value,
    choice,
    integer,
    number,
    positive,
    shown,
)


@pytest.mark.parametrize("text", ["0", "", "false", "False"])
def test_switch_off(text: str) -> None:
    assert SWITCH.read(text) is False


@pytest.mark.parametrize("text", ["1", "true", "no", "off", "FALSE", " "])
def test_anything_else_is_on(text: str) -> None:
    assert SWITCH.read(text) is True


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (integer(), "-3", -3),
        (integer(), " 7 ", 7),
        (integer(0), "0", 0),
        (integer(1, 65535), "65535", 65535),
        (number(), "1e3", 1000.0),
        (number(), "-2", -2.0),
        (positive(), "0.5", 0.5),
        (choice("off", "mask"), "mask", "mask"),
        (TEXT, "a b", "a b"),
        (TEXT, "", None),
        (PATH, "", None),
        (NAMES, " a, b ,,c,", ("a", "b", "c")),
        (NAMES, "", ()),
        (NUMBERS, "1.5", (1.5,)),
        (NUMBERS, "1,2.5", (1.0, 2.5)),
        (TOKEN_RANGES, "", ()),
        (TOKEN_RANGES, "0..3,7,10..12", ((0, 3), (7, 7), (10, 12))),
        (TOKEN_RANGES, "5..5", ((5, 5),)),
    ],
)
def test_value(kind: Kind, text: str, value: Value) -> None:
    read = kind.read(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (integer(), ""),
        (integer(), "1.0"),
        (integer(), "ten"),
        (integer(), "9" * 5000),
        (integer(1), "0"),
        (integer(1, 65535), "65536"),
        (number(), ""),
        (number(), "nan"),
        (number(), "inf"),
        (positive(), "0"),
        (choice("off", "mask"), "Off"),
        (choice("off", "mask"), ""),
        (NUMBERS, ""),
        (NUMBERS, "1,,2"),
        (NUMBERS, "1,nan"),
        (TOKEN_RANGES, "3..1"),
        (TOKEN_RANGES, "3,3"),
        (TOKEN_RANGES, "0..3,2"),
        (TOKEN_RANGES, "-1"),
        (TOKEN_RANGES, "3.."),
        (TOKEN_RANGES, "..3"),
        (TOKEN_RANGES, "1,"),
        (TOKEN_RANGES, "0-3"),
    ],
)
def test_text_that_is_not_allowed(kind: Kind, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the contract names the type and no message
        kind.read(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "1"),
        (False, "0"),
        (12, "12"),
        (0.5, "0.5"),
        ("text", "text"),
        ((), ""),
        (("a", "b"), "a,b"),
        ((1.0, 2.5), "1.0,2.5"),
        (((0, 3), (7, 7)), "0..3,7"),
    ],
)
def test_value_as_text(value: Value, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (integer(), "an integer"),
        (integer(1), "an integer of at least 1"),
        (integer(1, 9), "an integer from 1 to 9"),
        (integer(maximum=9), "an integer of at most 9"),
        (positive(), "a finite number above 0"),
        (choice("off", "mask"), "off, mask"),
    ],
)
def test_allowed_in_words(kind: Kind, words: str) -> None:
    assert kind.allowed == words
