"""`Request` and `Sequence`: what was asked, and each running answer to it."""

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
"""Called with a sequence, a position and logits [m, V]: of the rows at that position and after."""


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
    """One answer: a prompt and what was generated after it.

    error says why it ended without or before its last token; exception is what a step raised.
    last_token_at: when it got its last token before a preemption. captured: positions whose logits
    were given to the request's on_logits.

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
        """Prompt and output [known]. A view while it runs: copy what must outlive a step."""
        if self._table is None:
            return self._tokens
        return self._table.tokens_of(self.slot)

    @property
    def known(self) -> int:
        """Tokens of prompt and output."""
        return len(self._tokens) if self._table is None else int(self._table.known[self.slot])

    @property
    def slot(self) -> int:
        """The slot in which it runs."""
        assert self.cache is not None, "a sequence that does not run has no slot"
        return self.cache.slot

    @property
    def finished(self) -> bool:
        """Has it ended, for whatever reason?"""
        return self.status is Status.FINISHED

    @property
    def output_length(self) -> int:
        """Generated tokens."""
        return self.known - self.prompt_length

    @property
    def output(self) -> npt.NDArray[np.integer]:
        """Generated tokens [output_length]. A view while it runs, like `tokens`."""
        return self.tokens[self.prompt_length :]

    @property
    def is_full(self) -> bool:
        """Has it as many tokens as its request or the engine allows? It runs."""
        assert self._table is not None
        return bool(self._table.known[self.slot] >= self._table.stop_at[self.slot])

    def enter(self, table: SequenceTable) -> None:
        """Start to run in the slot of its cache."""
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
        """Must every token be looked at?"""
        return bool(self.request.params.stop_token_ids) or self.request.on_token is not None

    def got_first_token(self, now: float) -> None:
        """Note the time of the first token [s, `time.monotonic`]; later ones may go unseen."""
        assert self._table is not None
        self.first_token_at = now
        if not self._is_watched:
            self._table.unwatch(self.slot)

    def leave(self) -> None:
        """Take the tokens along; the slot is free for another sequence."""
        if self._table is not None:
            self._tokens = self._table.tokens_of(self.slot).copy()
            self._table = None

    def finish(self, reason: str, stop_reason: str | int | None = None) -> None:
        """Mark it finished; its memory is taken back by the scheduler."""
        self.status = Status.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.finished_at = time.monotonic()

    def fail(self, error: BaseException) -> None:
        """End it with what was raised."""
        self.exception = error
        self.error = f"{type(error).__name__}: {error}"
        self.finish(FinishReason.ERROR)


@dataclass(eq=False)
class Request:
    """A prompt and its answers. number: order of arrival. Times are of `time.monotonic`.

    prompt_logprobs: of prompt tokens 1.. in order, when asked for; the first token has none.
    on_token is called with each sequence that got a token, and may call its `finish`. on_logits is
    called with the logits of every row that is computed, once for each position.
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
        """All sequences have finished."""
        return all(sequence.finished for sequence in self.sequences)
