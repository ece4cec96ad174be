"""Moduli, offsets and multipliers of the Engram hash (model specification, 8.3, 8.4, B.7)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from deepinfer.config import EngramHash, ModelConfig
from deepinfer.config.engram import is_prime
from tests.config.released import released_config

RELEASED = ModelConfig.from_dict(released_config()).text
GOLDEN = Path(os.environ.get("DEEPINFER_GOLDEN_DIR", ""), "ops.safetensors")


@pytest.mark.parametrize(
    ("layer", "first", "last", "rows"),
    [(1, 16000057, 16000463, 384006168), (14, 16000477, 16000889, 384016682)],
)
def test_released_moduli(layer: int, first: int, last: int, rows: int) -> None:
    hashing = RELEASED.engram_hashes[layer]
    assert (hashing.primes[0], hashing.primes[-1], hashing.rows) == (first, last, rows)
    assert len(hashing.primes) == RELEASED.engram_columns == 24


@pytest.mark.parametrize(
    ("layer", "multipliers"),
    [
        (1, (76632096046245, 4839876093313, 35959672319349, 73987337458391)),
        (14, (67716810739261, 51510806800915, 30921347202721, 82619226485591)),
    ],
)
def test_released_multipliers(layer: int, multipliers: tuple[int, ...]) -> None:
    assert RELEASED.engram_hashes[layer].multipliers == multipliers


@pytest.mark.parametrize(
    ("layer", "first_rows", "last_row"),
    [(1, [12185977, 23020615, 44369337], 382312707), (14, [10505031, 24441816], 381816501)],
)
def test_published_rows(layer: int, first_rows: list[int], last_row: int) -> None:
    """Rows of compressed ids (1, 2, 3, 4), appendix B.7, hashed as section 8.5 says."""
    hashing = RELEASED.engram_hashes[layer]
    rows = hash_rows(hashing, (1, 2, 3, 4))
    assert (rows[: len(first_rows)].tolist(), rows[-1]) == (first_rows, last_row)


def hash_rows(hashing: EngramHash, ids: tuple[int, ...]) -> np.ndarray:
    multipliers, offsets = np.array(hashing.multipliers), np.array(hashing.offsets)
    mixed = ids[0] * multipliers[0]
    moduli = np.array(hashing.primes).reshape(len(ids) - 1, -1)
    columns = []
    for k in range(1, len(ids)):
        mixed = mixed ^ (ids[k] * multipliers[k])
        columns.append(mixed % moduli[k - 1])
    return np.concatenate(columns) + offsets


@pytest.mark.parametrize("number", [2, 3, 37, 41, 7919, 16000057, 2**61 - 1])
def test_prime(number: int) -> None:
    assert is_prime(number)


@pytest.mark.parametrize("number", [0, 1, 4, 561, 1681, 3215031751, 3825123056546413051])
def test_composite(number: int) -> None:
    """Carmichael numbers and strong pseudoprimes to small bases included."""
    assert not is_prime(number)


def test_small_search_starts_at_the_vocabulary_size() -> None:
    values = released_config()
    values["text_config"] |= {
        "engram_vocab_size": 3,
        "engram_layer_ids": [0, 1],
        "engram_max_ngram_size": 2,
        "engram_n_heads": 2,
        "engram_num_embeddings": [8, 18],
    }
    hashes = ModelConfig.from_dict(values).text.engram_hashes
    assert [h.primes for h in hashes.values()] == [(3, 5), (7, 11)]
    assert [h.offsets for h in hashes.values()] == [(0, 3), (0, 7)]


@pytest.mark.skipif(not GOLDEN.is_file(), reason="DEEPINFER_GOLDEN_DIR names no golden data")
@pytest.mark.parametrize("name", ["published", "tiny"])
def test_golden(name: str) -> None:
    from safetensors import safe_open

    tiny = GOLDEN.parent / "tiny-a" / "checkpoint"
    text = RELEASED if name == "published" else ModelConfig.from_file(tiny).text
    with safe_open(GOLDEN, "np") as golden:
        for field in ("primes", "offsets", "multipliers"):
            ours = [list(getattr(h, field)) for h in text.engram_hashes.values()]
            assert golden.get_tensor(f"engram.{name}.{field}").tolist() == ours
