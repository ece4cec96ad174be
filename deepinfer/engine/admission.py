"""`Admission`: which requests are queued, and which waiting sequences start to run.

A request is refused when it is wrong or can never fit. A sequence that can fit waits until the step
that is being planned has rows for it and the cache has memory for all of it.
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
"""More tokens than all sequences together can have: stands for "no limit"."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a step and rules of admission.

    max_num_seqs: the most sequences that run at a time. max_num_batched_tokens: the most rows of a
    step. chunked_prefill: a prompt may be computed in several steps. Without it every prompt is
    computed in one step; only a preempted sequence that is longer than a step is still recomputed
    in chunks. stop_preempted_request: a preempted sequence ends instead of being recomputed.

    max_sum_length: no sequence is admitted that would raise the sum of all lengths above this.
    lookahead_tokens: the fewest rows of any chunk of a prompt but its last. score_bytes: the most
    memory that index scores may take in a step. They take rows of the step x tokens of the longest
    sequence x score_bytes_per_token.
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
        """The most rows of a step whose longest sequence has `context` tokens; at least 1."""
        if not self.score_bytes_per_token or context < 1:
            return self.max_num_batched_tokens
        fitting = int(self.score_bytes / (self.score_bytes_per_token * context))
        return max(1, min(self.max_num_batched_tokens, fitting))

    @property
    def least_rows(self) -> int:
        """The fewest rows of any chunk of a prompt but its last."""
        return self.lookahead_tokens if self.chunked_prefill else UNBOUNDED


class Admission:
    """Checks requests and waiting sequences against the cache and the limits of one engine.

    most_rows: the most rows of one sequence in a step. The limit of rows bounds it, and the number
    of window pages. UsageError where the window pages do not hold even one row.
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
        # the most rows for which all window pages suffice, when the sequence runs alone
        fitting = (
            (capacity - 1) * layout.page_tokens - layout.text.sliding_window - layout.backtrack
        )
        self.most_rows = min(limits.max_num_batched_tokens, fitting)

    def check(self, prompt: Prompt, params: SamplingParams) -> Int64Array:
        """Check a new request; returns its prompt as an array [T].

        RequestError for a prompt that is empty or is no list of ids of the vocabulary, and for
        parameters that name ids outside the vocabulary or ask for too many samples.
        PromptTooLongError, with the numbers, for a prompt that can never fit.
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
        """The room that the running sequences leave in a step.

        known [n]: their numbers of tokens. planned: the rows that they have in the step. promised:
        the context blocks that they will need beside those that they hold.
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
    """The room left in a step, while waiting sequences are admitted one after the other.

    total: known tokens of all sequences in the step. longest: known tokens of the longest one.
    planned: rows given out so far. promised: context blocks that admitted sequences will need for
    known tokens that are not computed yet. alone: no sequence runs so far.
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
        """The rows that a sequence of `known` tokens may have; 0 where it must wait."""
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
        """Count a sequence of `known` tokens that was given `rows` rows and their blocks."""
        self.longest = max(self.longest, known)
        self.total += known
        self.planned += rows
        layout = self.cache.layout
        self.promised += layout.blocks_for(known) - layout.blocks_for(rows)
        self.alone = False


def _integers(prompt: Prompt) -> npt.NDArray[Any]:
    """The prompt as a one-dimensional array of integers; RequestError for anything else."""
    with contextlib.suppress(ValueError):  # raised for rows of different lengths
        tokens = np.asarray(prompt)
        if tokens.ndim == 1 and tokens.dtype.kind in "iu":
            return tokens
    for place, token in enumerate(prompt):
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise RequestError(
                f"prompt token id {token!r} at place {place} is no integer; a prompt is a list of "
                "integers"
            )
    return np.array(prompt, dtype=object)  # some integer is wider than 64 bits
