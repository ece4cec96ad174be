"""Philox4x32-10: random words as a function of a key and a counter, in int64 arithmetic.

A word is a value in [0, 2^32) held in int64, which every torch device has; no product that is
formed here exceeds 2^49. Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3" (SC 2011); the layout of key and counter is the design's rule for random numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32
WORD_MASK = (1 << WORD_BITS) - 1
ROUNDS = 10

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def multiply_words(a: Tensor, b: Tensor | int) -> tuple[Tensor, Tensor]:
    """The 64-bit product of two words as (high word, low word)."""
    low_part = a * (b & 0xFFFF)
    upper = a * (b >> 16) + (low_part >> 16)
    return upper >> 16, ((upper & 0xFFFF) << 16) | (low_part & 0xFFFF)


def split_words(value: Tensor) -> tuple[Tensor, Tensor]:
    """(low word, high word) of the bit pattern of an int64, negative values included."""
    return value & WORD_MASK, (value >> WORD_BITS) & WORD_MASK


def philox4x32(counter: Tensor, key: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Counter words [..., 4] and key words [..., 2], int64, to random words [..., 4], int64."""
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key.unbind(-1)
    for index in range(rounds):
        if index:
            k0 = (k0 + _KEY_STEPS[0]) & WORD_MASK
            k1 = (k1 + _KEY_STEPS[1]) & WORD_MASK
        high0, low0 = multiply_words(c0, _MULTIPLIERS[0])
        high1, low1 = multiply_words(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return torch.stack((c0, c1, c2, c3), dim=-1)


def random_words(seeds: Tensor, positions: Tensor, purpose: int, draw: int = 0) -> Tensor:
    """Four random words per row: seeds [M], positions [M], both int64 -> [M, 4] int64.

    Key: the seed's bit pattern, low word first. Counter: position low, position high, purpose,
    draw. Equal arguments give equal words, whatever the row or the batch.
    """
    low, high = split_words(positions)
    counter = torch.stack(
        (
            low,
            high,
            torch.full_like(low, int(purpose) & WORD_MASK),
            torch.full_like(low, draw & WORD_MASK),
        ),
        dim=-1,
    )
    return philox4x32(counter, torch.stack(split_words(seeds), dim=-1))


def integer_below(words: Tensor, total: Tensor) -> Tensor:
    """(r * total) >> 64, exact: an integer in [0, total), or 0 where total is 0.

    words [M, at least 2]: r is the first two as a 64-bit number, first word low. total [M] int64
    in [0, 2^63). Returns [M] int64.
    """
    r_low, r_high = words[..., 0], words[..., 1]
    t_low, t_high = split_words(total)
    carry, _ = multiply_words(r_low, t_low)
    high_a, low_a = multiply_words(r_high, t_low)
    high_b, low_b = multiply_words(r_low, t_high)
    high_c, low_c = multiply_words(r_high, t_high)
    middle = carry + low_a + low_b
    return (high_c << WORD_BITS) + low_c + high_a + high_b + (middle >> WORD_BITS)
