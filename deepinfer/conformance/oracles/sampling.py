"""Sampling by brute force: Python integers and 50-digit decimals, one row at a time."""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal, localcontext

WORD = 1 << 32
MASS_BITS = 31
MASK_BITS = 32
PRECISION = Context(prec=50)


def float32(value: float | Decimal) -> float:
    """The nearest float32; infinities beyond its range."""
    value = float(value)
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def mass(logprob: float) -> int:
    """floor(exp(logprob) * 2^31), exactly."""
    if logprob == -math.inf:
        return 0
    with localcontext(PRECISION):
        return int(Decimal(logprob).exp() * (1 << MASS_BITS))


def log_softmax(values: list[float]) -> list[float]:
    """Log-probabilities, rounded to float32 once; -inf stays."""
    with localcontext(PRECISION):
        top = Decimal(max(values))
        total = sum(((Decimal(v) - top).exp() for v in values if v != -math.inf), Decimal(0))
        shift = top + total.ln()
        return [-math.inf if v == -math.inf else float32(Decimal(v) - shift) for v in values]


def process(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> list[float]:
    """The processed log-probabilities of one row of float32 logits."""
    size = len(logits)
    if any(math.isnan(x) or x == math.inf for x in logits) or max(logits) == -math.inf:
        return [math.nan] * size
    inverse = float32(1 / temperature) if temperature else math.inf
    if temperature == 0 or not math.isfinite(float32(max(logits) * inverse)):
        best = logits.index(max(logits))
        return [0.0 if t == best else -math.inf for t in range(size)]
    z = [float32(x * inverse) for x in logits]
    with localcontext(PRECISION):
        survivors = _survivors(z, top_p, top_k, min_p)
    return log_softmax([z[t] if t in survivors else -math.inf for t in range(size)])


def _survivors(z: list[float], top_p: float, top_k: int, min_p: float) -> set[int]:
    """The tokens that remain after top-p, then top-k, then min-p."""
    masses = [mass(logprob) for logprob in log_softmax(z)]
    limit = (int(Decimal(top_p) * (1 << MASS_BITS)) * sum(masses)) >> MASS_BITS
    survivors: list[int] = []
    before = 0
    for t in sorted(range(len(z)), key=lambda t: (-z[t], t)):
        if before <= limit:
            survivors.append(t)
        before += masses[t]
    if top_k:
        survivors = survivors[:top_k]
    top = Decimal(max(z))
    return {t for t in survivors if (Decimal(z[t]) - top).exp() >= Decimal(min_p)}


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 of four counter words and two key words."""
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = q // WORD ^ b ^ k, q % WORD, p // WORD ^ d ^ m, p % WORD
        k, m = (k + 0x9E3779B9) % WORD, (m + 0xBB67AE85) % WORD
    return [a, b, c, d]


def uniform(seed: int, position: int, purpose: int) -> int:
    """The 64-bit random number of (seed, position, purpose), draw 0; seed and position unsigned."""
    words = philox([position % WORD, position // WORD, purpose, 0], [seed % WORD, seed // WORD])
    return words[0] + WORD * words[1]


def sample(logprobs: list[float], seed: int, position: int, purpose: int) -> int:
    """The drawn token, or -1."""
    if any(math.isnan(x) for x in logprobs):
        return -1
    return drawn([mass(logprob) for logprob in logprobs], uniform(seed, position, purpose))


def drawn(masses: list[int], random: int) -> int:
    """The token that a 64-bit random number draws from integer masses; -1 where all are 0."""
    u = random * sum(masses) >> 64
    reached = 0
    for token, m in enumerate(masses):
        reached += m
        if reached > u:
            return token
    return -1


def mask(logits: list[float], words: list[int]) -> list[float]:
    """The logits with -inf for tokens whose bit is 0. words: signed 32-bit numbers."""
    return [
        logit if words[t // MASK_BITS] % WORD >> t % MASK_BITS & 1 else -math.inf
        for t, logit in enumerate(logits)
    ]


def top(logprobs: list[float], k: int) -> list[int]:
    """The k best tokens, descending, ties by lower id."""
    return sorted(range(len(logprobs)), key=lambda t: (-logprobs[t], t))[:k]
