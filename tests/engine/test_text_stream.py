"""Stop strings across tokens: deltas concatenate, nothing follows a stop, little is held back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.text_stream import TextStream
from deepinfer.text import Tokenizer
from tests.text.small_tokenizer import small_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token per byte, so that everything straddles tokens."""
    byte = {tokenizer.token_bytes(i): i for i in range(3, 259)}
    return [byte[bytes([value])] for value in text.encode()]


def streamed(stream: TextStream, tokens: list[int]) -> list[str]:
    return [stream.push(token) for token in tokens] + [stream.finish()]


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The text up to the stop that is complete first, by looking at every prefix."""
    for end in range(len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            stop = max(hits, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(deadline=None, max_examples=300)
@given(
    st.text("ab€x", max_size=12),
    st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
def test_equals_the_naive_definition(
    tokenizer: Tokenizer, text: str, stops: list[str], include: bool
) -> None:
    stream = TextStream(tokenizer, [], stops, include_stop=include)
    deltas: list[str] = []
    for token in ids(tokenizer, text):
        deltas.append(stream.push(token))
        assert stream.text == "".join(deltas)
        if stream.stopped is not None:
            break
    deltas.append(stream.finish())
    assert ("".join(deltas), stream.stopped) == naive(text, stops, include)
    assert stream.text == "".join(deltas)


@settings(deadline=None, max_examples=100)
@given(st.text("ab€", max_size=12), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_a_character_waits_only_while_it_may_begin_a_stop(
    tokenizer: Tokenizer, text: str, stops: list[str]
) -> None:
    stream = TextStream(tokenizer, [], stops)
    shown = ""
    for place, character in enumerate(text):
        shown += "".join(stream.push(token) for token in ids(tokenizer, character))
        if stream.stopped is not None:
            break
        held = text[len(shown) : place + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_follows_a_stop(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, [], ["b"])
    assert streamed(stream, ids(tokenizer, "abcabc")) == ["a", "", "", "", "", "", ""]
    assert (stream.text, stream.stopped) == ("a", "b")


def test_a_begun_stop_is_text_in_the_end(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, [], ["end"])
    assert streamed(stream, ids(tokenizer, "then")) == ["t", "h", "", "", "en"]
    assert stream.stopped is None


def test_a_token_with_text_on_both_sides_of_a_stop(tokenizer: Tokenizer) -> None:
    think = tokenizer.encode("think")
    assert len(think) == 1
    stream = TextStream(tokenizer, [], ["in"])
    assert streamed(stream, think) == ["th", ""]


def test_a_stop_that_ends_inside_a_character_of_the_prompt(tokenizer: Tokenizer) -> None:
    euro = ids(tokenizer, "€")
    stream = TextStream(tokenizer, euro[:2], ["€"])
    assert streamed(stream, [euro[2], *ids(tokenizer, "a")]) == ["", "", ""]
    assert stream.stopped == "€"
