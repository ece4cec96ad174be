"""Text deltas never split a character and concatenate to the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.text import StreamDecoder, Tokenizer
from tests.text.small_tokenizer import BASE_SIZE


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One id per byte."""
    single = {tokenizer.token_bytes(i): i for i in range(3, 3 + 256)}
    return [single[bytes([byte])] for byte in data]


def stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    decoder = StreamDecoder(tokenizer, prompt or [])
    return [*(decoder.push(i) for i in ids), decoder.finish()]


@pytest.mark.parametrize("text", ["é", "स", "😀", "a😀b", "🏳️‍🌈", "स😀é"])
def test_a_character_appears_with_its_last_byte(tokenizer: Tokenizer, text: str) -> None:
    deltas = stream(tokenizer, byte_ids(tokenizer, text.encode()))
    expected = []
    for character in text:
        expected += [""] * (len(character.encode()) - 1) + [character]
    assert deltas == [*expected, ""]


def test_an_emoji_in_merged_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀")
    assert len(ids) == 2
    assert stream(tokenizer, ids) == ["", "😀", ""]


@pytest.mark.parametrize(
    ("data", "deltas"),
    [
        (b"\xff", ["\ufffd", ""]),
        (b"\x80a", ["\ufffd", "a", ""]),
        (b"\xf0\x9f\x98", ["", "", "", "\ufffd"]),
        (b"\xf0\x9fa", ["", "", "\ufffda", ""]),
        (b"\xed\xa0\x80", ["", "", "\ufffd" * 3, ""]),
    ],
)
def test_bytes_that_are_no_text(tokenizer: Tokenizer, data: bytes, deltas: list[str]) -> None:
    assert stream(tokenizer, byte_ids(tokenizer, data)) == deltas


@given(data=st.binary(max_size=12))
def test_deltas_concatenate_to_the_whole(tokenizer: Tokenizer, data: bytes) -> None:
    ids = byte_ids(tokenizer, data)
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, BASE_SIZE + 8), max_size=10))
def test_any_ids_concatenate_to_the_whole(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_the_prompt_ends_inside_a_character(tokenizer: Tokenizer, cut: int) -> None:
    ids = byte_ids(tokenizer, "ab😀c".encode())
    deltas = stream(tokenizer, ids[2 + cut :], prompt=ids[: 2 + cut])
    assert "".join(deltas) == "😀c"


@pytest.mark.parametrize(
    ("prompt", "data", "text"),
    [
        (b"\xf0\x9f", b"a", "a"),  # the prompt's half character is not ours
        (b"\xf0\x9f", b"", ""),
        (b"\xf0\x9f", b"\x98", "\ufffd"),  # but our own stray byte is
        (b"\xf0\x9f", b"\x98a", "\ufffda"),
        (b"\xc3\xa9", b"\xa9", "\ufffd"),  # the prompt's last character was whole
        (b"ab\xff", b"c", "c"),
        (b"", b"\xc3\xa9", "é"),
        (b"\xe0\xa4", b"\xb8\xf0", "स\ufffd"),
    ],
)
def test_half_a_character_in_the_prompt(
    tokenizer: Tokenizer, prompt: bytes, data: bytes, text: str
) -> None:
    deltas = stream(tokenizer, byte_ids(tokenizer, data), byte_ids(tokenizer, prompt))
    assert "".join(deltas) == text


def test_special_tokens(tokenizer: Tokenizer) -> None:
    think = tokenizer.token_id("<think>")
    assert stream(tokenizer, [1, think]) == ["", "<think>", ""]
    shown = StreamDecoder(tokenizer, skip_special=False)
    assert shown.push(1) == "<｜end▁of▁sentence｜>"


def test_finish_leaves_nothing(tokenizer: Tokenizer) -> None:
    decoder = StreamDecoder(tokenizer)
    assert decoder.push(byte_ids(tokenizer, b"\xf0")[0]) == ""
    assert [decoder.finish(), decoder.finish()] == ["\ufffd", ""]


def test_id_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="320 is outside the vocabulary"):
        StreamDecoder(tokenizer).push(320)
