"""Encoding, decoding and control tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import RequestError, TokenizerError
from deepinfer.text import Tokenizer
from tests.text.small_tokenizer import BASE_SIZE, BOS, EOS, ORDINARY, PAD, SPECIAL

ADDED = (BOS, EOS, PAD, *SPECIAL, *ORDINARY)


def test_ids_come_from_the_config(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)
    assert tokenizer.vocab_size == BASE_SIZE + len(SPECIAL) + len(ORDINARY) - 1  # one is merged
    assert tokenizer.model_vocab_size == 320


@pytest.mark.parametrize("spelling", ADDED)
@pytest.mark.parametrize("frame", ["{}", "a{}b", " {}", "{}{}", "the\n{}"])
def test_user_text_never_becomes_a_control_token(
    tokenizer: Tokenizer, spelling: str, frame: str
) -> None:
    text = frame.replace("{}", spelling)
    ids = tokenizer.encode(text)
    assert tokenizer.token_id(spelling) not in ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("spelling", ADDED)
def test_control_tokens_are_parsed_where_asked_for(tokenizer: Tokenizer, spelling: str) -> None:
    ids = tokenizer.encode_with_control(f"the{spelling}the")
    assert ids == [*tokenizer.encode("the"), tokenizer.token_id(spelling), *tokenizer.encode("the")]


def test_control_spelling_in_the_vocabulary_and_its_merges(tokenizer: Tokenizer) -> None:
    """The small vocabulary can merge "<think>"; the id of the added token is that of the merge."""
    assert tokenizer.token_id("<think>") < BASE_SIZE
    assert tokenizer.decode(tokenizer.encode("<think>")) == "<think>"
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("<think>")] == [b"<think", b">"]


@pytest.mark.parametrize("text", ["", "the the", "ß é 你好 😀🏳️‍🌈", "\x00\r\n\t", "a\ufffdb"])
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bos_is_added_only_when_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("the", add_bos=True) == [0, *tokenizer.encode("the")]


def test_special_tokens_can_be_left_out(tokenizer: Tokenizer) -> None:
    ids = [0, *tokenizer.encode("the"), tokenizer.token_id("</think>"), 1]
    assert tokenizer.decode(ids) == "the</think>"
    assert tokenizer.decode(ids, skip_special=False) == f"{BOS}the</think>{EOS}"


@pytest.mark.parametrize("spelling", ["<｜deepseek_image｜>", "<｜image｜>"])
def test_both_spellings_of_the_image_placeholder(tokenizer: Tokenizer, spelling: str) -> None:
    assert tokenizer.token_id(spelling) == tokenizer.image_id
    assert tokenizer.encode_with_control(f"a{spelling}")[1:] == [tokenizer.image_id]
    assert tokenizer.has_token(spelling)


def test_missing_spelling(tokenizer: Tokenizer) -> None:
    assert not tokenizer.has_token("<｜ref｜>")
    with pytest.raises(TokenizerError, match="has no token '<｜ref｜>'"):
        tokenizer.token_id("<｜ref｜>")


def test_ids_that_the_file_does_not_define_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size, 319]) == ""


@pytest.mark.parametrize("token_id", [-1, 320])
def test_ids_outside_the_vocabulary(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(RequestError, match=f"{token_id} is outside the vocabulary, 0..319"):
        tokenizer.decode([token_id])


def test_lone_surrogate(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_with_control):
        with pytest.raises(RequestError, match="lone surrogate at character 1"):
            encode("a\ud800")


@given(ids=st.lists(st.integers(0, BASE_SIZE + len(SPECIAL) + len(ORDINARY) - 2), max_size=12))
def test_decode_equals_the_library(tokenizer: Tokenizer, ids: list[int]) -> None:
    for skip in (False, True):
        expected = tokenizer.library_tokenizer.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special=skip) == expected


@given(text=st.text())
def test_any_text_round_trips_without_control_tokens(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {number for number, _ in tokenizer.added_tokens.values()} & set(ids)
