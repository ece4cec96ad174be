"""`SamplingParams`: how the tokens of one request are chosen and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from deepinfer.errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of one request; names and ranges are the vendor engine's where it has them.

    temperature: 0 takes the most probable token, else logits are divided by it. top_p in (0, 1].
    top_k: -1 for no limit. min_p in [0, 1). max_tokens: output length cap, at least 1. seed: 64
    bits, None draws one. ignore_eos: do not stop at the end-of-sentence token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: int = 16
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, lambda value: value >= 0, "at least 0")
        _number("top_p", self.top_p, lambda value: 0 < value <= 1, "in (0, 1]")
        _number("min_p", self.min_p, lambda value: 0 <= value < 1, "in [0, 1)")
        _integer("top_k", self.top_k)
        if self.top_k != -1 and not 1 <= self.top_k < 2**31:
            raise RequestError(f"top_k is {self.top_k}; allowed: -1 (no limit) or 1 to 2^31 - 1")
        _integer("max_tokens", self.max_tokens)
        if not 1 <= self.max_tokens < 2**31:
            raise RequestError(f"max_tokens is {self.max_tokens}; allowed: 1 to 2^31 - 1")
        if self.seed is not None:
            _integer("seed", self.seed)
            if not -(2**63) <= self.seed < 2**64:
                raise RequestError(f"seed is {self.seed}; allowed: -2^63 to 2^64 - 1")


def _number(name: str, value: Any, allowed: Callable[[Any], bool], rule: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        finite = number and math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        finite = False
    if not finite or not allowed(value):
        raise RequestError(f"{name} is {value!r}; allowed: a finite number {rule}")


def _integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} is {value!r}; allowed: an integer")
