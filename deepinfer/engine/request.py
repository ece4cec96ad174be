"""`Request` and `Sequence`: what was asked, and each running answer to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from deepinfer.cache import SequenceCache
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.engine.token_buffer import TokenBuffer

Int64Array = npt.NDArray[np.int64]


class Status(Enum):
    """Where a sequence stands. PLANNED: a further sample, until the prompt is computed."""

    PLANNED = "planned"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason:
    """Words of `finish_reason`, the vendor engine's where it has them."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    NO_RESOURCES = "insufficient_system_resource"
    TOO_LONG = "prompt_length_exceeded"


@dataclass
class TokenLogprobs:
    """Log-probabilities of one generated token.

    processed: under the distribution it was drawn from; raw: under the model's own, temperature 1.
    top: the most probable tokens of the raw distribution, by id. sum_smaller_probs: probability of
    all tokens up to this one in ascending order, under DEEPINFER_COMPUTE_SUM_SMALLER_PROBS.
    """

    raw: float
    processed: float
    top: dict[int, float] = field(default_factory=dict)
    sum_smaller_probs: float | None = None


class Sequence:
    """One answer. tokens [>= known] int64 holds prompt and output; known counts them.

    error says why it ended without or before its last token; exception is what a step raised.
    last_token_at: when it got its last token before a preemption.
    While it runs, its newest tokens may stand in a `TokenBuffer`; reading it takes them over.
    last_token_at: when it got its last token before a preemption.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        seed: int,
        tokens: Int64Array,
        known: int,
        prompt_length: int,
        cache: SequenceCache | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.seed = seed
        self.prompt_length = prompt_length
        self.cache = cache
        self.status = Status.WAITING
        self.finish_reason = ""
        self.stop_reason: str | int | None = None
        self.error = ""
        self.exception: BaseException | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.preemptions = 0
        self.first_token_at = 0.0
        self.last_token_at = 0.0
        self.finished_at = 0.0
        self._tokens = tokens
        self._known = known
        self._buffer: TokenBuffer | None = None
        self._slot = 0

    @property
    def tokens(self) -> Int64Array:
        """Prompt and output, and room behind them."""
        self.take_tokens()
        return self._tokens

    @property
    def known(self) -> int:
        """Tokens of prompt and output."""
        if self._buffer is None:
            return self._known
        return self._known + int(self._buffer.count[self._slot])

    @property
    def finished(self) -> bool:
        """Has it ended, for whatever reason?"""
        return self.status is Status.FINISHED

    @property
    def output_length(self) -> int:
        """Generated tokens."""
        return self.known - self.prompt_length

    @property
    def output(self) -> Int64Array:
        """Generated tokens."""
        return self.tokens[self.prompt_length : self._known]

    def enter(self, buffer: TokenBuffer, slot: int) -> None:
        """Run in a slot, with new tokens in a buffer."""
        self._buffer, self._slot = buffer, slot
        buffer.enter(slot, self)

    def leave(self) -> None:
        """Take all tokens over; the slot is free for another sequence."""
        if self._buffer is not None:
            self.take_tokens()
            self._buffer.leave(self._slot)
            self._buffer = None

    def take_tokens(self) -> None:
        """Take the tokens over that stand in the buffer."""
        if self._buffer is None or not self._buffer.count[self._slot]:
            return
        new = self._buffer.take(self._slot)
        end = self._known + len(new)
        if end > len(self._tokens):
            room = np.zeros(max(end, 2 * len(self._tokens)), np.int64)
            room[: self._known] = self._tokens[: self._known]
            self._tokens = room
        self._tokens[self._known : end] = new
        self._known = end

    def finish(self, reason: str, stop_reason: str | int | None = None) -> None:
        """Mark it finished; its memory is taken back by the scheduler."""
        self.status = Status.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.finished_at = time.monotonic()


@dataclass(eq=False)
class Request:
    """A prompt and its answers. number: order of arrival. Times are of `time.monotonic`.

    prompt_logprobs: of prompt tokens 1.. in order, when asked for; the first token has none.
    on_token is called with each sequence that got a token, and may call its `finish`.
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

    @property
    def finished(self) -> bool:
        """All sequences have finished."""
        return all(sequence.finished for sequence in self.sequences)
