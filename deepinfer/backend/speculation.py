"""Speculation family: what a step with a draft in flight computes on the device.

N sequences, B draft slots. Source: engine specification, sections 5 and 13.9. Signatures only:
no first-party backend implements these yet.
"""

from __future__ import annotations

from torch import Tensor

from deepinfer.backend.operators import primitive


class Speculation:
    """Device-side bookkeeping of accepted tokens, so that the host never waits."""

    @primitive(rows="lengths")
    def lengths_after(self, lengths: Tensor, rows: Tensor, accepted: Tensor) -> Tensor:
        """Committed lengths [N] int64 once `accepted` [N] of the step's `rows` [N] stand."""
        raise NotImplementedError

    @primitive(rows="sampled")
    def next_inputs(self, sampled: Tensor, drafts: Tensor, query_start: Tensor) -> Tensor:
        """Token ids of the next step's rows [T]: the sampled token, then its drafts [N, B]."""
        raise NotImplementedError

    @primitive(rows="history")
    def next_history(self, history: Tensor, token_ids: Tensor, query_start: Tensor) -> Tensor:
        """Compressed n-gram history [T, n] of the next step's rows."""
        raise NotImplementedError

    @primitive(rows="confidences")
    def split_budget(self, confidences: Tensor, budget: int) -> Tensor:
        """Rows per sequence [N] int64 that verify the most probable drafts within a budget."""
        raise NotImplementedError

    @primitive(rows="sampled")
    def draft_inputs(self, sampled: Tensor, lengths: Tensor, block: int, noise: int) -> Tensor:
        """Ids [N, block] of a draft block: the sampled token, then the noise token."""
        raise NotImplementedError

    @primitive(rows="hidden")
    def confidence(
        self, hidden: Tensor, markov: Tensor, weight: Tensor, temperature: Tensor
    ) -> Tensor:
        """Acceptance probability of each draft slot: hidden [N, H], markov [N, R] -> [N] fp32."""
        raise NotImplementedError
