"""`Admission`: what a request must satisfy to be queued, and a waiting sequence to start.

A request is refused when it is wrong or can never fit. A sequence that fits in principle waits
until the step that is being planned has rows for it and the cache has memory for all of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer.arrays import Int64Array
from deepinfer.cache import CacheManager
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.errors import PromptTooLongError, RequestError, UsageError

Prompt = Sequence[int] | npt.NDArray[np.integer[Any]]

UNBOUNDED = 2**30
"""A number of tokens that no sum of lengths reaches."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a step and rules of admission.

    max_num_seqs: running sequences. max_num_batched_tokens: rows of a step. chunked_prefill False
    computes every prompt in one step; a preempted sequence that has outgrown a step is recomputed
    in chunks all the same. stop_preempted_request: end a preempted sequence instead.
    max_sum_length: known tokens of all sequences beyond which none is admitted. lookahead_tokens:
    least rows of a piece of a prompt that is not its last. score_bytes: what index scores may
    take: rows of a step x context of the longest sequence x score_bytes_per_token.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool = True
    stop_preempted_request: bool = False
    max_sum_length: int = UNBOUNDED
    lookahead_tokens: int = 0
    score_bytes: int = 2**62
    score_bytes_per_token: float = 0.0

    def rows_for(self, context: int) -> int:
        """Rows of a step whose longest sequence has `context` tokens; at least 1."""
        if not self.score_bytes_per_token or context < 1:
            return self.max_num_batched_tokens
        fitting = int(self.score_bytes / (self.score_bytes_per_token * context))
        return max(1, min(self.max_num_batched_tokens, fitting))

    @property
    def least_rows(self) -> int:
        """Least rows of a piece of a prompt that is not its last."""
        return self.lookahead_tokens if self.chunked_prefill else UNBOUNDED


class Admission:
    """Judges requests and waiting sequences against one engine's cache and limits.

    most_rows: rows that one sequence may have in a step, by the limit and by the pool of pages.
    UsageError for a pool of pages that does not hold one row.
    """

    def __init__(
        self, cache: CacheManager, limits: Limits, *, vocab_size: int, max_model_len: int
    ) -> None:
        self.limits = limits
        self._cache = cache
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        layout, capacity = cache.layout, cache.pages.capacity
        if layout.window_pages_for(1) > capacity:
            raise UsageError(
                f"one row needs {layout.window_pages_for(1)} window pages and the engine has "
                f"{capacity}; use a larger pool of pages"
            )
        # Rows of one sequence for which its pages suffice when it is alone.
        fitting = (
            (capacity - 1) * layout.page_tokens - layout.text.sliding_window - layout.backtrack
        )
        self.most_rows = min(limits.max_num_batched_tokens, fitting)

    def check(self, prompt: Prompt, params: SamplingParams) -> Int64Array:
        """The prompt as an array [T] of a request that can run.

        RequestError for a prompt that is empty or no list of ids of the vocabulary, and for
        parameters that name other ids or too many samples; PromptTooLongError, with the numbers,
        for one that can never fit.
        """
        tokens = self._token_ids(prompt)
        params.check_vocabulary(self._vocab_size)
        self._check_length(len(tokens))
        if params.n > self.limits.max_num_seqs:
            raise RequestError(
                f"n is {params.n} and max_num_seqs is {self.limits.max_num_seqs}; ask for fewer "
                "samples"
            )
        return tokens

    def step(self, known: Int64Array, planned: int, promised: int) -> StepRoom:
        """The room in a step beside the running sequences with `known` [n] tokens.

        planned: rows that they have in it. promised: context blocks that they will still need.
        """
        return StepRoom(
            self.limits,
            self._cache,
            self.most_rows,
            total=int(known.sum()),
            longest=int(known.max(initial=0)),
            planned=planned,
            promised=promised,
            alone=not len(known),
        )

    def _token_ids(self, prompt: Prompt) -> Int64Array:
        if len(prompt) == 0:
            raise RequestError("the prompt has no tokens; give at least one")
        tokens = _integers(prompt)
        wrong = np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))
        if wrong.size:
            raise RequestError(
                f"prompt token id {int(tokens[wrong[0]])} at place {int(wrong[0])} is outside the "
                f"vocabulary 0..{self._vocab_size - 1}"
            )
        return tokens.astype(np.int64)

    def _check_length(self, length: int) -> None:
        cache, limits = self._cache, self.limits
        if length + 1 > self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {length} tokens and max_model_len is {self._max_model_len}, which "
                "must also hold one output token; shorten the prompt or raise max_model_len"
            )
        most = min(self.most_rows, limits.rows_for(length))
        if not limits.chunked_prefill and length > most:
            if most == limits.max_num_batched_tokens:
                reason = f"max_num_batched_tokens is {most}"
            elif most == self.most_rows:
                reason = f"the {cache.pages.capacity} window pages hold a step of {most} rows"
            else:
                reason = (
                    f"the index scores of {most} rows take DEEPINFER_INDEX_ATTN_MEMORY_LIMIT "
                    f"({limits.score_bytes} bytes)"
                )
            raise PromptTooLongError(
                f"the prompt has {length} tokens, {reason} and chunked_prefill is off; switch it "
                "on, shorten the prompt or raise that limit"
            )
        if length > limits.max_sum_length:
            raise PromptTooLongError(
                f"the prompt has {length} tokens and DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K allows "
                f"{limits.max_sum_length} in one step; shorten the prompt or raise the variable"
            )
        blocks, held = cache.layout.blocks_for(length + 1), cache.blocks.capacity
        if blocks > held:
            raise PromptTooLongError(
                f"the prompt has {length} tokens, which with one output token need {blocks} cache "
                f"blocks of {cache.layout.block_tokens} tokens; the engine has {held}. Shorten "
                "the prompt or raise num_blocks"
            )


@dataclass
class StepRoom:
    """What is left of a step while waiting sequences are admitted to it, one after the other.

    total: known tokens of all sequences; longest: of the longest one. planned: rows. promised:
    context blocks for tokens that are known and not computed yet. alone: no sequence runs.
    """

    limits: Limits
    cache: CacheManager
    most_rows: int
    total: int
    longest: int
    planned: int
    promised: int
    alone: bool

    def rows_for(self, known: int) -> int:
        """Rows for a sequence of `known` tokens; 0 where it must wait."""
        most = self.limits.rows_for(max(self.longest, known))
        wanted = min(known, self.most_rows, most)
        rows = min(wanted, most - self.planned)
        if rows < min(wanted, max(1, self.limits.least_rows)):
            return 0
        if not self.alone and self.total + known > self.limits.max_sum_length:
            return 0
        blocks = self.cache.layout.blocks_for(known)
        return rows if self.cache.blocks.can_allocate(self.promised + blocks) else 0

    def take(self, known: int, rows: int) -> None:
        """A sequence of `known` tokens has got `rows` rows, and the blocks for them."""
        self.longest = max(self.longest, known)
        self.total += known
        self.planned += rows
        layout = self.cache.layout
        self.promised += layout.blocks_for(known) - layout.blocks_for(rows)
        self.alone = False


def _integers(prompt: Prompt) -> npt.NDArray[Any]:
    """A prompt as an array of one dimension of integers of any size; RequestError otherwise."""
    with contextlib.suppress(ValueError):  # numpy's answer to rows of several lengths
        tokens = np.asarray(prompt)
        if tokens.ndim == 1 and tokens.dtype.kind in "iu":
            return tokens
    for place, token in enumerate(prompt):
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise RequestError(
                f"prompt token id {token!r} at place {place} is no integer; a prompt is a list of "
                "integers"
            )
    return np.array(prompt, dtype=object)  # integers wider than 64 bits
