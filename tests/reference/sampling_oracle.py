"""The published vectors of sampling, made by the brute-force definitions of the suite.

They share no code with the reference backend. This writes the file beside it:

    python tests/reference/sampling_oracle.py > tests/reference/sampling_vectors.json
"""

from __future__ import annotations

import json
import math
import random
from typing import Any

from deepinfer.conformance.oracles.sampling import float32, mass, process, sample

__all__ = ["float32", "mass", "process", "sample", "text", "vectors"]


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
