"""`Request` and `Sequence`: a prompt with its parameters, and each sample that answers it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt
from torch import Tensor

from deepinfer.arrays import Int64Array
from deepinfer.cache import SequenceCache
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.engine.sequence_table import SequenceTable

OnLogits = Callable[["Sequence", int, Tensor], None]
"""Called with a sequence, a position, and the logits [m, V] of m rows from that position on."""


class Status(Enum):
    """State of a sequence. PLANNED: a further sample of a prompt that is not computed yet."""

    PLANNED = "planned"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason:
    """Values of `finish_reason`; names are the vendor engine's where it has them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    NO_RESOURCES = "insufficient_system_resource"
    TOO_LONG = "prompt_length_exceeded"


@dataclass
class TokenLogprobs:
    """Log-probabilities of one generated token.

    raw: in the model's own distribution, at temperature 1. processed: in the distribution that the
    token was drawn from. top: the most probable tokens of the raw distribution, log-probability by
    id. sum_smaller_probs: the total probability of this token and all less probable ones; only with
    DEEPINFER_COMPUTE_SUM_SMALLER_PROBS.
    """

    raw: float
    processed: float
    top: dict[int, float] = field(default_factory=dict)
    sum_smaller_probs: float | None = None


class Sequence:
    """One sample of a request: the prompt and what was generated after it.

    error: why it failed, "" if it did not. exception: what a step or a callback raised.
    last_token_at: when it got its latest token, noted at a preemption. captured: the position from
    which on logits are to be given to on_logits; earlier ones were, or are those of another sample.
    Times are of `time.monotonic`.

    While it runs, its tokens stand in the `SequenceTable`; otherwise it keeps them itself.
    """

    def __init__(
        self, request: Request, index: int, seed: int, tokens: Int64Array, prompt_length: int
    ) -> None:
        self.request = request
        self.index = index
        self.seed = seed
        self.prompt_length = prompt_length
        self.cache: SequenceCache | None = None
        self.status = Status.WAITING
        self.finish_reason = ""
        self.stop_reason: str | int | None = None
        self.error = ""
        self.exception: BaseException | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.preemptions = 0
        self.captured = 0
        self.first_token_at = 0.0
        self.last_token_at = 0.0
        self.finished_at = 0.0
        self._tokens: npt.NDArray[np.integer] = tokens
        self._table: SequenceTable | None = None

    @property
    def tokens(self) -> npt.NDArray[np.integer]:
        """Prompt and output [known]; a view while it runs, so copy what must outlive a step."""
        if self._table is None:
            return self._tokens
        return self._table.tokens_of(self.slot)

    @property
    def known(self) -> int:
        """The number of tokens of prompt and output."""
        return len(self._tokens) if self._table is None else int(self._table.known[self.slot])

    @property
    def slot(self) -> int:
        """The slot in which the sequence runs."""
        assert self.cache is not None, "a sequence that does not run has no slot"
        return self.cache.slot

    @property
    def finished(self) -> bool:
        """Whether the sequence has ended, for whatever reason."""
        return self.status is Status.FINISHED

    @property
    def output_length(self) -> int:
        """The number of generated tokens."""
        return self.known - self.prompt_length

    @property
    def output(self) -> npt.NDArray[np.integer]:
        """The generated tokens [output_length]; a view while it runs, like `tokens`."""
        return self.tokens[self.prompt_length :]

    @property
    def is_full(self) -> bool:
        """Whether a running sequence has as many tokens as its request and the engine allow."""
        assert self._table is not None
        return bool(self._table.known[self.slot] >= self._table.stop_at[self.slot])

    def enter(self, table: SequenceTable) -> None:
        """Start to run in the slot of its cache, and move the tokens into the table."""
        params = self.request.params
        table.enter(
            self.slot,
            self._tokens,
            prompt_length=self.prompt_length,
            max_tokens=params.max_tokens,
            stops_at_eos=not params.ignore_eos,
            watched=self.output_length == 0 or self._is_watched,
        )
        self._table = table

    @property
    def _is_watched(self) -> bool:
        """Whether each of its tokens may end it or must be reported."""
        return bool(self.request.params.stop_token_ids) or self.request.on_token is not None

    def got_first_token(self, now: float) -> None:
        """Note when the first token came; later tokens are looked at only if they must be."""
        assert self._table is not None
        self.first_token_at = now
        if not self._is_watched:
            self._table.unwatch(self.slot)

    def leave(self) -> None:
        """Move the tokens out of the table, so that the slot can serve another sequence."""
        if self._table is not None:
            self._tokens = self._table.tokens_of(self.slot).copy()
            self._table = None

    def finish(self, reason: str, stop_reason: str | int | None = None) -> None:
        """Mark the sequence finished. `Scheduler.release` frees its memory."""
        self.status = Status.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.finished_at = time.monotonic()
        if not self.first_token_at and self.output_length:
            self.first_token_at = self.finished_at  # ended in the step that drew its first token

    def fail(self, error: BaseException) -> None:
        """End the sequence with an exception."""
        self.exception = error
        self.error = f"{type(error).__name__}: {error}"
        self.finish(FinishReason.ERROR)


@dataclass(eq=False)
class Request:
    """A prompt and the sequences that answer it. number: order of arrival.

    arrival, scheduled_at: of `time.monotonic`. prompt_logprobs: of the prompt's tokens from the
    second on, where asked for. on_token: called with a sequence after each of its tokens.
    on_logits: called with the logits of every row, each position once. Both may call
    `Sequence.finish`.
    """

    request_id: str
    number: int
    prompt: Int64Array
    params: SamplingParams
    arrival: float
    scheduled_at: float = 0.0
    sequences: list[Sequence] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    on_token: Callable[[Sequence], None] | None = None
    on_logits: OnLogits | None = None

    @property
    def finished(self) -> bool:
        """Whether all sequences have finished."""
        return all(sequence.finished for sequence in self.sequences)
