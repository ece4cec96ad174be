"""The Engram hash of each Engram layer: moduli, row offsets, multipliers.

Source: model specification, sections 8.3 and 8.4. Nothing here depends on weights: the numbers
follow from the configuration alone, and the sum of a layer's moduli is its table's row count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

SEED_FACTOR = 10007
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # decide every number below 3.3e24


class EngramSettings(Protocol):
    """The values of `text_config` that the hash depends on."""

    @property
    def engram_layer_ids(self) -> tuple[int, ...]: ...
    @property
    def engram_max_ngram_size(self) -> int: ...
    @property
    def engram_vocab_size(self) -> int: ...
    @property
    def engram_n_heads(self) -> int: ...
    @property
    def engram_compressed_vocab_size(self) -> int: ...


@dataclass(frozen=True)
class EngramHash:
    """The hash of one Engram layer.

    layer: layer number. primes: the modulus of each column; column (n - 2) * heads + head belongs
    to n-grams of n tokens. offsets: first table row of each column. multipliers: one for the token
    itself and one for each of the max_ngram_size - 1 tokens before it. rows: table rows.
    """

    layer: int
    primes: tuple[int, ...]
    offsets: tuple[int, ...]
    multipliers: tuple[int, ...]
    rows: int


def is_prime(number: int) -> bool:
    """Whether a 64-bit number is prime: Miller-Rabin with fixed witnesses, which is exact here."""
    if number < 2:
        return False
    for witness in _WITNESSES:
        if number % witness == 0:
            return number == witness
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        value = pow(witness, odd, number)
        if value in (1, number - 1):
            continue
        for _ in range(twos - 1):
            value = value * value % number
            if value == number - 1:
                break
        else:
            return False
    return True


def engram_primes(settings: EngramSettings) -> Iterator[tuple[int, int]]:
    """Yield pairs (layer, modulus), column by column.

    For each layer and n-gram order the search goes up from `engram_vocab_size` - 1 and takes primes
    that no earlier column of any layer has. So all columns together have consecutive primes.
    """
    last = settings.engram_vocab_size - 1
    columns = (settings.engram_max_ngram_size - 1) * settings.engram_n_heads
    for layer in settings.engram_layer_ids:
        for _ in range(columns):
            last += 1
            while not is_prime(last):
                last += 1
            yield layer, last


def engram_multipliers(layer: int, compressed_vocab_size: int, count: int) -> tuple[int, ...]:
    """`count` odd multipliers whose products with a compressed id stay below 2^63."""
    bound = (2**63 - 1) // compressed_vocab_size // 2
    draws = np.random.default_rng(SEED_FACTOR * layer).integers(
        0, bound, size=count, dtype=np.int64
    )
    return tuple(2 * int(draw) + 1 for draw in draws)


def engram_hashes(settings: EngramSettings) -> dict[int, EngramHash]:
    """The hash of every Engram layer, by layer number, in the order of `engram_layer_ids`."""
    primes: Mapping[int, list[int]] = {layer: [] for layer in settings.engram_layer_ids}
    for layer, prime in engram_primes(settings):
        primes[layer].append(prime)
    return {
        layer: EngramHash(
            layer=layer,
            primes=tuple(moduli),
            offsets=_offsets(moduli),
            multipliers=engram_multipliers(
                layer, settings.engram_compressed_vocab_size, settings.engram_max_ngram_size
            ),
            rows=sum(moduli),
        )
        for layer, moduli in primes.items()
    }


def _offsets(moduli: Sequence[int]) -> tuple[int, ...]:
    offsets, total = [], 0
    for modulus in moduli:
        offsets.append(total)
        total += modulus
    return tuple(offsets)
