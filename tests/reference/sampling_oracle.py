"""Sampling by brute force: Python integers and 50-digit decimals, one row at a time, no torch.

Independent of the reference backend, it also makes the published vectors beside it:

    python tests/reference/sampling_oracle.py > tests/reference/sampling_vectors.json
"""

from __future__ import annotations

import json
import math
import random
import struct
from decimal import Decimal, getcontext
from typing import Any

getcontext().prec = 50
WORD = 1 << 32


def float32(value: float | Decimal) -> float:
    """The nearest float32; infinities beyond its range."""
    value = float(value)
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def mass(logprob: float) -> int:
    """floor(exp(logprob) * 2^31), exactly."""
    if logprob == -math.inf:
        return 0
    return int(Decimal(logprob).exp() * (1 << 31))


def log_softmax(values: list[float]) -> list[float]:
    """Rounded to float32 once; -inf stays."""
    top = Decimal(max(values))
    total = sum(((Decimal(v) - top).exp() for v in values if v != -math.inf), Decimal(0))
    return [-math.inf if v == -math.inf else float32(Decimal(v) - top - total.ln()) for v in values]


def process(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> list[float]:
    """One row of float32 logits to processed log-probabilities."""
    size = len(logits)
    if any(math.isnan(x) or x == math.inf for x in logits) or max(logits) == -math.inf:
        return [math.nan] * size
    inverse = float32(1 / temperature) if temperature else math.inf
    if temperature == 0 or not math.isfinite(float32(max(logits) * inverse)):
        best = logits.index(max(logits))
        return [0.0 if t == best else -math.inf for t in range(size)]
    z = [float32(x * inverse) for x in logits]

    masses = [mass(logprob) for logprob in log_softmax(z)]
    limit = (int(Decimal(top_p) * (1 << 31)) * sum(masses)) >> 31
    survivors: list[int] = []
    before = 0
    for t in sorted(range(size), key=lambda t: (-z[t], t)):
        if before <= limit:
            survivors.append(t)
        before += masses[t]
    if top_k:
        survivors = survivors[:top_k]
    probability = {t: (Decimal(z[t]) - Decimal(max(z))).exp() for t in survivors}
    survivors = [t for t in survivors if probability[t] >= Decimal(min_p)]
    return log_softmax([z[t] if t in survivors else -math.inf for t in range(size)])


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
    masses = [mass(logprob) for logprob in logprobs]
    u = uniform(seed, position, purpose) * sum(masses) >> 64
    reached = 0
    for token, m in enumerate(masses):
        reached += m
        if reached > u:
            return token
    return -1


def plain(values: list[float]) -> list[float | str]:
    """Floats for strict JSON: what is not finite becomes a string that `float` reads."""
    return [x if math.isfinite(x) else str(x) for x in values]


def random_logits(rng: random.Random, size: int) -> list[float]:
    """Quarters in [-5, 5], so that ties are common; a few tokens are masked out."""
    values = [rng.randrange(-20, 21) / 4 for _ in range(size)]
    return [-math.inf if size > 1 and rng.random() < 0.1 else v for v in values]


def process_cases() -> list[tuple[list[float], float, float, int, float]]:
    """Chosen rows, then random ones."""
    nan, inf = math.nan, math.inf
    ramp = [2.0, 1.0, 1.0, 0.0, -1.0, -inf]
    cases = [
        (ramp, 1.0, 1.0, 0, 0.0),
        (ramp, 0.0, 1.0, 0, 0.0),
        ([1.0, 3.0, 3.0], 0.0, 1.0, 0, 0.0),
        (ramp, 1e-39, 1.0, 0, 0.0),
        (ramp, 1.0, 1e-12, 0, 0.0),
        ([0.0] * 4, 1.0, 0.5, 0, 0.0),
        (ramp, 1.0, 1.0, 2, 0.0),
        (ramp, 1.0, 1.0, 99, 0.0),
        (ramp, 1.0, 1.0, 0, 0.3),
        (ramp, 0.7, 0.9, 3, 0.2),
        ([-3.5], 0.7, 0.5, 1, 0.5),
        ([0.0, nan, 1.0], 1.0, 1.0, 0, 0.0),
        ([0.0, inf, 1.0], 0.0, 1.0, 0, 0.0),
        ([-inf] * 3, 1.0, 1.0, 0, 0.0),
    ]
    rng = random.Random(41)
    for size in (1, 2, 3, 5, 17, 33, 40):
        for _ in range(4):
            cases.append(
                (
                    random_logits(rng, size),
                    rng.choice([0.25, 0.7, 1.0, 1.3]),
                    rng.choice([0.1, 0.5, 0.9, 0.99, 1.0]),
                    rng.choice([0, 0, 1, 3, 20]),
                    rng.choice([0.0, 0.0, 0.05, 0.5]),
                )
            )
    return [(x, float32(t), float32(p), k, float32(m)) for x, t, p, k, m in cases]


def vectors() -> dict[str, Any]:
    """Everything that the vectors file holds."""
    processed = [(case, process(*case)) for case in process_cases()]
    rng = random.Random(42)
    draws = []
    for _, logprobs in processed:
        seed, position = rng.getrandbits(64), rng.choice([rng.getrandbits(20), rng.getrandbits(63)])
        purpose = rng.randrange(4)
        draws.append((logprobs, seed, position, purpose, sample(logprobs, seed, position, purpose)))
    return {
        "process": [
            {
                "logits": plain(logits),
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "min_p": min_p,
                "logprobs": plain(logprobs),
            }
            for (logits, temperature, top_p, top_k, min_p), logprobs in processed
        ],
        "sample": [
            {
                "logprobs": plain(logprobs),
                "seed": f"{seed:#018x}",
                "position": f"{position:#018x}",
                "purpose": purpose,
                "id": token,
            }
            for logprobs, seed, position, purpose, token in draws
        ],
    }


def text(content: dict[str, Any]) -> str:
    """One case per line."""
    sections = [
        f'"{name}": [\n' + ",\n".join(json.dumps(case, allow_nan=False) for case in cases) + "\n]"
        for name, cases in content.items()
    ]
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    print(text(vectors()), end="")
