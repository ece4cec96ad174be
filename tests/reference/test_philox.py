"""Philox4x32-10 in int64: the published answers, exact products, and what a counter is made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_reference.philox import integer_below, multiply_words, philox4x32, random_words

WORD = st.integers(0, 2**32 - 1)
EDGE_WORD = st.one_of(WORD, st.sampled_from([0, 1, 0xFFFF, 0x10000, 2**31, 2**32 - 1]))


def words(text: str) -> torch.Tensor:
    return torch.tensor([int(word, 16) for word in text.split()])


# counter, key, result: the philox4x32 10 lines of Random123's kat_vectors
KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(
    ("counter", "key", "result"), KNOWN_ANSWERS, ids=["zeros", "ones", "digits of pi"]
)
def test_known_answers(counter: str, key: str, result: str) -> None:
    assert torch.equal(philox4x32(words(counter), words(key)), words(result))


def test_rows_are_computed_together_as_alone() -> None:
    counter = torch.stack([words(answer[0]) for answer in KNOWN_ANSWERS])
    key = torch.stack([words(answer[1]) for answer in KNOWN_ANSWERS])
    expected = torch.stack([words(answer[2]) for answer in KNOWN_ANSWERS])
    assert torch.equal(philox4x32(counter, key), expected)


@settings(derandomize=True, deadline=None)
@given(EDGE_WORD, EDGE_WORD)
def test_product_of_words_is_exact(a: int, b: int) -> None:
    high, low = multiply_words(torch.tensor([a]), torch.tensor([b]))
    assert (int(high) << 32) + int(low) == a * b
    constant_high, constant_low = multiply_words(torch.tensor([a]), b)
    assert (int(constant_high), int(constant_low)) == (int(high), int(low))


@settings(derandomize=True, deadline=None)
@given(
    EDGE_WORD,
    EDGE_WORD,
    st.one_of(
        st.integers(0, 2**48),
        st.sampled_from([0, 1, 2**31 - 40000, 2**31, 2**32 + 1, 2**48, 2**63 - 1]),
    ),
)
def test_integer_below_is_the_high_half_of_the_product(low: int, high: int, total: int) -> None:
    drawn = integer_below(torch.tensor([[low, high, 7, 7]]), torch.tensor([total]))
    assert int(drawn) == ((low + (high << 32)) * total) >> 64


def test_counter_and_key_layout() -> None:
    seed, position = 0x299F31D0_A4093822, 0x05A308D3_243F6A88
    got = random_words(torch.tensor([seed]), torch.tensor([position]), 0x13198A2E, 0x03707344)
    counter = torch.tensor([[0x243F6A88, 0x05A308D3, 0x13198A2E, 0x03707344]])
    assert torch.equal(got, philox4x32(counter, words("a4093822 299f31d0")[None]))


def test_a_negative_seed_is_the_same_bit_pattern() -> None:
    got = random_words(torch.tensor([-1]), torch.tensor([-1]), 2**32 - 1, 2**32 - 1)
    assert torch.equal(got[0], words(KNOWN_ANSWERS[1][2]))


def test_seed_position_purpose_and_draw_each_change_the_words() -> None:
    def once(seed: int, position: int, purpose: int, draw: int) -> tuple[int, ...]:
        got = random_words(torch.tensor([seed]), torch.tensor([position]), purpose, draw)
        return tuple(got[0].tolist())

    changed = [(5, 6, 1, 0), (6, 6, 1, 0), (5, 7, 1, 0), (5, 6, 2, 0), (5, 6, 1, 1)]
    high = [(5 + 2**32, 6, 1, 0), (5, 6 + 2**32, 1, 0)]
    assert len({once(*arguments) for arguments in changed + high}) == 7


def test_no_rows() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert random_words(empty, empty, 0).shape == (0, 4)
