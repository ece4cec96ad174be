"""Sampling family: from logits to tokens. Every row is independent of the batch.

M rows, V vocabulary. Source: engine specification, section 6, and the design's rules for random
numbers (Philox4x32-10 keyed by seed, counted by position) and for drawing (fixed point).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from deepinfer.backend.facts import vocabulary_of
from deepinfer.backend.operators import primitive
from deepinfer.backend.values import TopLogprobs


class Purpose(IntEnum):
    """What a random number is for; a part of its counter, so that none is used twice."""

    SAMPLE = 0
    RESIDUAL = 1
    ACCEPT = 2
    DRAFT = 3


@dataclass(frozen=True)
class SamplingParameters:
    """Per-row parameters of `process`, [M] each.

    temperature fp32: 0 means the highest logit, ties to the lowest id. top_p fp32 in (0, 1].
    top_k int64: 0 keeps all. min_p fp32 in [0, 1): drops tokens less probable than min_p times
    the most probable one; 0 keeps all.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor


class Sampling:
    """Operators on logits."""

    @primitive(rows="logits", per_sequence=True, facts=lambda call: vocabulary_of(call.logits))
    def mask(self, logits: Tensor, bits: Tensor) -> Tensor:
        """-inf where a token's bit is 0: logits [M, V], bits [M, ceil(V/32)] int32 -> [M, V]."""
        raise NotImplementedError

    @primitive(rows="logits", per_sequence=True, facts=lambda call: vocabulary_of(call.logits))
    def process(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """Normalised log-probabilities after temperature, top-p, top-k and min-p: [M, V] fp32.

        Order of tokens: descending value, ties by lower id. top-p keeps a token when the mass
        before it, over the whole row and in 31-bit fixed point, is at most top_p; top-k then keeps
        the first k that remain; min_p applies last. Dropped tokens are -inf; the rest are
        renormalised. Temperature 0 gives 0 for the chosen token and -inf elsewhere. A row with NaN
        or +inf, or with nothing but -inf, comes back as all NaN: that request fails, no other.
        """
        raise NotImplementedError

    @primitive(rows="logprobs", per_sequence=True, facts=lambda call: vocabulary_of(call.logprobs))
    def sample(self, logprobs: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
        """Draw one token per row: logprobs [M, V] -> ids [M] int64.

        seeds [M] int64 (the bits of a 64-bit seed), positions [M] int64 absolute. Mass of a token:
        floor(exp(float64(logprob)) * 2^31); with r the first two Philox words as a 64-bit number
        (first word low), u = (r * total) >> 64; the token is the first in ascending id whose
        inclusive sum exceeds u. A row of NaN gives -1.
        """
        raise NotImplementedError

    @primitive(rows="logprobs", per_sequence=True, facts=lambda call: vocabulary_of(call.logprobs))
    def top_logprobs(self, logprobs: Tensor, k: int) -> TopLogprobs:
        """The k highest entries of each row, descending, ties to the lower id."""
        raise NotImplementedError

    @primitive(rows="target")
    def verify(
        self,
        target: Tensor,
        draft: Tensor,
        tokens: Tensor,
        seeds: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Accept drafts: target and draft log-probabilities [M, V], tokens [M] -> bool [M]."""
        raise NotImplementedError

    @primitive(rows="target")
    def residual(self, target: Tensor, draft: Tensor) -> Tensor:
        """Log-probabilities of max(p - q, 0) normalised: [M, V] each -> [M, V]."""
        raise NotImplementedError
