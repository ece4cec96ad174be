"""Random weights as stored bytes, the same on every machine.

All randomness is the output of SHAKE-256 over the seed and the tensor's name, so a tensor does not
depend on which others exist. Values are sums of uniform integers (nearly normal) times powers of
two; codes come from tables of exact values. Nothing here rounds differently anywhere.

Sizes are chosen so that activations stay near one: matrices keep the root mean square of their
input, norms are near one, the router's scores and the residual mixes vary with the token, sinks
have both signs. Layouts and names: model specification, section 2.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bundled_checkpoint.vocabulary import Vocabulary
from deepinfer.checkpoint import ExpectedTensor, Kind, expected_tensors
from deepinfer.config import ModelConfig

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SCALE_BIAS = 127  # a scale byte b means 2^(b - 127)
NORMAL_LIMIT = 510  # `_normal` draws integers in [-510, 510], standard deviation 147.8 = 2^7.2
RARE_SHIFT = 3  # output rows of unwanted tokens are smaller by this power of two


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as stored: `data` are its little-endian bytes in row-major order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def build_tensors(config: ModelConfig, tokens: Vocabulary, seed: int) -> Iterator[StoredTensor]:
    """Every tensor of the configuration, scales after the codes that they belong to."""
    rare = _rare_rows(tokens)
    for item in expected_tensors(config):
        if item.kind.quantised:
            yield from _quantised(item, seed)
        elif item.kind is Kind.FP32:
            values = _fp32_values(item, seed)
            yield _stored(item, "F32", values.astype("<f4").tobytes())
        else:
            values = _bf16_values(item, seed)
            if item.name.endswith("head.weight"):  # the head and the Markov head
                values[rare] /= 1 << RARE_SHIFT
            yield _stored(item, "BF16", _bf16_bytes(values))


def _stored(item: ExpectedTensor, dtype: str, data: bytes) -> StoredTensor:
    return StoredTensor(item.name, dtype, item.shape, data)


def _random_bytes(seed: int, name: str, count: int) -> npt.NDArray[np.uint8]:
    digest = hashlib.shake_256(f"{seed}:{name}".encode()).digest(count)
    return np.frombuffer(digest, dtype=np.uint8)


def _normal(seed: int, name: str, count: int) -> Integers:
    """Sums of four uniform bytes, centred: integers in [-510, 510]."""
    parts = _random_bytes(seed, name, 4 * count).reshape(count, 4)
    sums: Integers = parts.sum(axis=1, dtype=np.int64)
    return sums - NORMAL_LIMIT


def _wide_normal(seed: int, name: str, count: int) -> Integers:
    """Sums of four uniform 16-bit words, centred: more bits than bfloat16 holds, deviation 2^15.2.

    For what is stored in FP32, so that a loader which rounds it is noticed.
    """
    words = _random_bytes(seed, name, 8 * count).view("<u2").reshape(count, 4)
    sums: Integers = words.sum(axis=1, dtype=np.int64)
    return sums - 2 * 0xFFFF


def _scaled(integers: Integers, log2: int | Integers) -> Floats:
    """integers * 2^log2, exactly."""
    values: Floats = np.ldexp(integers.astype(np.float64), log2)
    return values


def _by_ending(table: dict[str, int], name: str, default: int) -> int:
    """The entry of the first key that the name ends with."""
    return next((value for end, value in table.items() if name.endswith(end)), default)


def _half_log2(width: int) -> int:
    """log2 of the square root of `width`, in whole numbers: what a sum over `width` grows by."""
    return ((width - 1).bit_length() + 1) // 2


def _rare_rows(tokens: Vocabulary) -> list[int]:
    """Ids that would spoil a shown text: added tokens, halves of characters, control characters."""
    return [number for number, data in enumerate(tokens.texts) if not _shows(data)]


def _shows(data: bytes | None) -> bool:
    try:
        text = (data or b"\0").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(character in "\n\t" or character >= " " for character in text)


# --- quantised: codes and scales -----------------------------------------------------------------


def _e4m3_magnitudes() -> Floats:
    """Values of the codes 0..126; 127 is NaN."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    implicit = 8 * (exponent > 0)
    return _scaled(implicit + mantissa, np.maximum(exponent, 1) - 10)


def _nearest_codes(values: Floats, magnitudes: Floats, sign_bit: int) -> npt.NDArray[np.uint8]:
    nearest: Integers = np.abs(np.abs(values)[:, None] - magnitudes).argmin(axis=1)
    return (nearest + sign_bit * (values < 0)).astype(np.uint8)


DRAWS = np.arange(-NORMAL_LIMIT, NORMAL_LIMIT + 1)
E4M3_OF_DRAW = _nearest_codes(DRAWS / 2.0, _e4m3_magnitudes(), 0x80)
E2M1_OF_DRAW = _nearest_codes(DRAWS / 64.0, np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]), 0x8)
CODE_LOG2 = {Kind.FP8: 6, Kind.TABLE: 6, Kind.FP4: 1}  # of the codes' deviation, rounded down
GAIN_LOG2 = {
    "attn.wq_b.weight": 1,  # keys are told apart
    "w2.weight": -1,  # a layer adds a part of what the streams hold, so that errors stay small
}


def _quantised(item: ExpectedTensor, seed: int) -> Iterator[StoredTensor]:
    """Codes with one common distribution, and scales of three neighbouring exponents."""
    draws = _normal(seed, item.name, math.prod(item.shape)) + NORMAL_LIMIT
    if item.kind is Kind.FP4:
        even, odd = E2M1_OF_DRAW[draws[0::2]], E2M1_OF_DRAW[draws[1::2]]
        stored = (even | odd << 4).tobytes()  # the even column in the low nibble
    else:
        stored = E4M3_OF_DRAW[draws].tobytes()
    growth = 0 if item.kind is Kind.TABLE else _half_log2(item.shape[1])
    exponent = _by_ending(GAIN_LOG2, item.name, 0) - CODE_LOG2[item.kind] - growth
    choice = _random_bytes(seed, item.scale_name, math.prod(item.scale_shape)) & 3
    scales = np.array([-1, 0, 0, 1])[choice] + exponent + SCALE_BIAS
    yield StoredTensor(item.name, item.kind.code_dtype, item.code_shape, stored)
    yield StoredTensor(
        item.scale_name, "F8_E8M0", item.scale_shape, scales.astype(np.uint8).tobytes()
    )


# --- not quantised: values -----------------------------------------------------------------------

BF16_LOG2 = {
    "embed.weight": 0,  # the token and the Markov embeddings, of about unit size
    "markov_head.head.weight": -3,
    "head.weight": -2,  # logits of a deviation of about 3: neither flat nor certain
}
BF16_GAIN_LOG2 = {"ffn.gate.weight": 1, "compressor.wgate.weight": 1}


def _bf16_values(item: ExpectedTensor, seed: int) -> Floats:
    """Values of a BF16 tensor before rounding, shaped as the tensor."""
    count = math.prod(item.shape)
    if item.name.endswith(("norm.weight", "engram.q_weight", "engram.k_weight")):
        numerators = 96 + (_random_bytes(seed, item.name, count) & 63).astype(np.int64)
        return _scaled(numerators, -7).reshape(item.shape)  # 0.75 to 1.24
    log2 = _by_ending(BF16_GAIN_LOG2, item.name, 0) - _half_log2(item.shape[1])
    log2 = _by_ending(BF16_LOG2, item.name, log2)
    return _scaled(_normal(seed, item.name, count), log2 - 7).reshape(item.shape)


def _bf16_bytes(values: Floats) -> bytes:
    """The upper halves of float32 bit patterns, rounded to nearest, ties to even."""
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()


def _fp32_values(item: ExpectedTensor, seed: int) -> Floats:
    """Values of an FP32 tensor, exact in float32, shaped as the tensor."""
    count = math.prod(item.shape)
    draws = _wide_normal(seed, item.name, count)
    if item.name.endswith("_fn"):
        values = _scaled(draws, -15 - _half_log2(item.shape[1]))
    elif item.name.endswith("_scale"):
        values = _scaled(np.abs(draws) + 0x8000, -16)  # 0.5 to 2.5
    elif item.name.endswith("_base"):
        values = _scaled(draws, -16) + _diagonal(count)
    elif item.name.endswith("attn_sink"):
        sign = 1 - 2 * (np.arange(count) % 2)
        values = _scaled(sign * (np.abs(draws) + 0x4000), -15)
    elif item.name.endswith((".bias", ".bias_vl")):
        values = _scaled(draws, -18)  # about 0.15, beside scores of 0.4 to 1.4
    else:
        raise ValueError(f"{item.name}: no rule for this FP32 tensor")
    return values.reshape(item.shape)


def _diagonal(count: int) -> Floats:
    """One where a stream's mix goes to the same stream (section 3.3), so that streams differ."""
    streams = math.isqrt(count + 1) - 1  # count = streams * (2 + streams)
    return np.concatenate([np.zeros(2 * streams), np.eye(streams).ravel()])
