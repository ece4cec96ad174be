"""`SamplingParams`: how the tokens of one request are chosen and when it ends."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from deepinfer.errors import NotBuiltYetError, RequestError

_ID_LISTS = ("stop_token_ids", "banned_token_ids", "golden_token_ids")
_SWITCHES = ("ignore_eos", "include_stop", "logprobs", "prompt_logprobs", "skip_special_tokens")
_HINTS = {
    "include_stop_str_in_output": "use include_stop",
    "best_of": "use n",
    "use_beam_search": "beam search is not built",
    "guided_decoding": "structured output is not built yet",
    "structured_outputs": "structured output is not built yet",
    "bad_words": "use banned_token_ids",
    "max_new_tokens": "use max_tokens",
    "do_sample": "use temperature, 0 takes the most probable token",
}
"""Parameters of other engines that do not exist here, and what to use instead."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling options of one request; names and ranges are the vendor engine's where it has them.

    temperature: logits are divided by it; 0 takes the most probable token. top_p in (0, 1]. top_k:
    -1 for no limit. min_p in [0, 1). max_tokens: the most output tokens, at least 1. min_tokens:
    nothing stops the sequence before it has that many output tokens. seed: 64 bits; None: a random
    one; sample i of n uses seed + i. n: samples of the prompt, which is computed once.

    ignore_eos: do not stop at the end-of-sentence token. stop: strings that end the text;
    include_stop keeps them in it. stop_token_ids: further ids that end it.

    frequency_penalty, presence_penalty: in [-2, 2], subtracted from the logits of generated tokens,
    the first once per occurrence, the second once. repetition_penalty: above 0; for tokens of
    prompt and output, positive logits are divided by it and negative ones multiplied. logit_bias:
    added to logits, by id. allowed_token_ids: only these are drawn. banned_token_ids: never drawn.

    golden_token_ids: the first output tokens are forced to be these (teacher forcing).
    first_n_token_no_eos: the end-of-sentence token is not among that many first output tokens.
    skip_special_tokens: leave special tokens out of the text.

    logprobs: return log-probabilities of output tokens, raw and processed. top_logprobs: also those
    of that many best tokens, 0 to 1000. prompt_logprobs: also those of the prompt's tokens.

    Three names are the vendor engine's. seq_seed is read as seed. so_args asks for structured
    output, which is not built yet. eos_id must be None or 0, because the end-of-sentence id is that
    of the checkpoint.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: int = 16
    seed: int | None = None
    ignore_eos: bool = False
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    golden_token_ids: tuple[int, ...] = ()
    first_n_token_no_eos: int = 0
    skip_special_tokens: bool = True
    seq_seed: int | None = None
    so_args: object = None
    eos_id: int | None = None

    @classmethod
    def from_names(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Parameters by name. RequestError for an unknown name, with the nearest known one."""
        return cls(**values)

    def __new__(cls, *args: object, **values: object) -> SamplingParams:
        known = [one.name for one in fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = _HINTS.get(name) or (f"did you mean {near[0]}?" if near else "")
                allowed = f"allowed: {', '.join(known)}"
                raise RequestError(f"{name!r} is no sampling parameter; {hint or allowed}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._take_vendor_names()
        self._normalise()
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
        self._check_rest()

    def _take_vendor_names(self) -> None:
        """Read seq_seed as seed, and refuse other vendor names that ask for what is not there."""
        if self.seq_seed is not None:
            if self.seed is not None and self.seed != self.seq_seed:
                raise RequestError(
                    f"seed is {self.seed!r} and seq_seed, its other name, {self.seq_seed!r}; give "
                    "one of them"
                )
            object.__setattr__(self, "seed", self.seq_seed)
            object.__setattr__(self, "seq_seed", None)
        if self.so_args is not None:
            raise NotBuiltYetError(
                "so_args is given: structured output is not built yet; leave it out"
            )
        if self.eos_id not in (None, 0):
            raise RequestError(
                f"eos_id is {self.eos_id!r}: the end-of-sentence id is the checkpoint's; use "
                "stop_token_ids to stop at another one too"
            )

    def _normalise(self) -> None:
        """Turn lists into tuples, and a single stop string into a tuple of one."""
        given: object = self.stop
        stop = (given,) if isinstance(given, str) else given
        if not isinstance(stop, list | tuple) or not all(isinstance(s, str) and s for s in stop):
            raise RequestError(f"stop is {self.stop!r}; allowed: a non-empty string or a list")
        object.__setattr__(self, "stop", tuple(stop))
        for name in (*_ID_LISTS, "allowed_token_ids"):
            ids = getattr(self, name)
            if ids is None and name in ("allowed_token_ids", "golden_token_ids"):
                if name == "golden_token_ids":
                    object.__setattr__(self, name, ())
                continue
            if not isinstance(ids, list | tuple):
                raise RequestError(f"{name} is {ids!r}; allowed: a list of token ids")
            for token in ids:
                _integer(name, token)
            object.__setattr__(self, name, tuple(int(token) for token in ids))
        if self.allowed_token_ids == ():
            raise RequestError("allowed_token_ids is empty; name at least one id, or pass None")
        if not isinstance(self.logit_bias, dict):
            raise RequestError(f"logit_bias is {self.logit_bias!r}; allowed: a dict of id to bias")
        for token, bias in self.logit_bias.items():
            _integer("logit_bias id", token)
            _number("logit_bias", bias, lambda value: True, "per id")

    def _check_rest(self) -> None:
        for name, low, high in (
            ("n", 1, 1024),
            ("min_tokens", 0, self.max_tokens),
            ("top_logprobs", 0, 1000),
            ("first_n_token_no_eos", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            _integer(name, value)
            if not low <= value <= high:
                raise RequestError(f"{name} is {value}; allowed: {low} to {high}")
        for name in ("frequency_penalty", "presence_penalty"):
            _number(name, getattr(self, name), lambda v: -2 <= v <= 2, "in [-2, 2]")
        _number("repetition_penalty", self.repetition_penalty, lambda v: v > 0, "above 0")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {getattr(self, name)!r}; allowed: True or False")

    def check_vocabulary(self, size: int) -> None:
        """RequestError when an id is outside a vocabulary of `size` tokens."""
        for name in (*_ID_LISTS, "allowed_token_ids", "logit_bias"):
            for token in getattr(self, name) or ():
                if not 0 <= token < size:
                    raise RequestError(f"{name} names id {token}; allowed: 0 to {size - 1}")
        if self.top_logprobs > size:
            raise RequestError(f"top_logprobs is {self.top_logprobs}; the vocabulary has {size}")

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of output tokens are asked for."""
        return self.logprobs or self.top_logprobs > 0

    @property
    def changes_logits(self) -> bool:
        """Whether more than temperature, top-p, top-k and min-p changes the distribution."""
        return bool(
            self.min_tokens
            or self.frequency_penalty
            or self.presence_penalty
            or self.repetition_penalty != 1
            or self.logit_bias
            or self.allowed_token_ids is not None
            or self.banned_token_ids
            or self.golden_token_ids
            or self.first_n_token_no_eos
        )


def _number(name: str, value: Any, allowed: Callable[[Any], bool], rule: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        finite = number and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        finite = False
    if not finite or not allowed(value):
        raise RequestError(f"{name} is {value!r}; allowed: a finite number {rule}")


def _integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} is {value!r}; allowed: an integer")
