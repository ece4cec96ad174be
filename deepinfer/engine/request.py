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


@dataclass(eq=False)
class Sequence:
    """One answer. tokens [>= known] int64 holds prompt and output; known counts them.

    error says why it ended without or before its last token; exception is what a step raised.
    last_token_at: when it got its last token before a preemption.
    """

    request: Request
    index: int
    seed: int
    tokens: Int64Array
    known: int
    prompt_length: int
    cache: SequenceCache | None = None
    status: Status = Status.WAITING
    finish_reason: str = ""
    stop_reason: str | int | None = None
    error: str = ""
    exception: BaseException | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    preemptions: int = 0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finished_at: float = 0.0

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
        return self.tokens[self.prompt_length : self.known]

    def append(self, token: int) -> None:
        """Add a generated token."""
        if self.known == len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros(len(self.tokens), np.int64)])
        self.tokens[self.known] = token
        self.known += 1

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
