"""What a request gives back: one `RequestOutput` each, or `RequestDelta`s while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from deepinfer.engine.request import Request, Sequence, TokenLogprobs


@dataclass(frozen=True)
class CompletionOutput:
    """One answer. index: which of the n samples.

    finish_reason: stop, length, abort, error, insufficient_system_resource or
    prompt_length_exceeded. stop_reason: the stop string or token id that ended it, None where it
    was the end-of-sentence token. token_ids hold what was generated, the token that ended it
    included; text leaves special tokens and, unless include_stop asks for it, the stop out.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None
    num_preemptions: int = 0
    error: str = ""

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the processed log-probabilities; None where they were not asked for."""
        if self.logprobs is None:
            return None
        return sum(token.processed for token in self.logprobs)


@dataclass(frozen=True)
class RequestMetrics:
    """Seconds and counts of one request.

    arrival_time: when it was queued, since the epoch. queue_time: until it was first scheduled.
    time_to_first_token: from its arrival to its first token. inter_token_latency: mean between
    tokens of a sample. total: from arrival to its end. Times that were not reached are None.
    """

    arrival_time: float | None = None
    queue_time: float | None = None
    time_to_first_token: float | None = None
    inter_token_latency: float | None = None
    total: float | None = None
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0

    @classmethod
    def of(cls, request: Request) -> RequestMetrics:
        """The metrics of a finished request."""
        firsts = [s.first_token_at for s in request.sequences if s.first_token_at]
        ends = [s.finished_at for s in request.sequences if s.finished_at]
        gaps = [
            (s.finished_at - s.first_token_at) / (s.output_length - 1)
            for s in request.sequences
            if s.first_token_at and s.output_length > 1
        ]
        scheduled = request.scheduled_at
        return cls(
            arrival_time=time.time() - (time.monotonic() - request.arrival),
            queue_time=scheduled - request.arrival if scheduled else None,
            time_to_first_token=min(firsts) - request.arrival if firsts else None,
            inter_token_latency=sum(gaps) / len(gaps) if gaps else None,
            total=max(ends) - request.arrival if ends else None,
            num_prompt_tokens=len(request.prompt),
            num_generation_tokens=sum(s.output_length for s in request.sequences),
        )


@dataclass(frozen=True)
class RequestOutput:
    """The result of one request, whatever became of it.

    prompt: the text, where it was one. prompt_logprobs: of every prompt token, None for the first.
    error: why it failed, "" where it did not. The properties are those of the first sample.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str = ""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    finished: bool = True

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the first sample."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Why the first sample ended."""
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Log-probabilities of the first sample's tokens."""
        return self.outputs[0].logprobs


@dataclass(frozen=True)
class RequestDelta:
    """What one step added to one sample of a request.

    The texts of a sample's deltas concatenate to its text, and so do its token ids. finish_reason
    is "" while it runs; the last delta has it, and `error` where it failed.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str = ""
    stop_reason: str | int | None = None
    error: str = ""


def completion_of(sequence: Sequence, text: str) -> CompletionOutput:
    """The answer of a finished sequence."""
    return CompletionOutput(
        index=sequence.index,
        text=text,
        token_ids=[int(token) for token in sequence.output],
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        logprobs=list(sequence.logprobs) if _describes(sequence) else None,
        num_preemptions=sequence.preemptions,
        error=sequence.error,
    )


def _describes(sequence: Sequence) -> bool:
    return sequence.request.params.wants_logprobs or bool(sequence.logprobs)


def failed_output(
    request_id: str, prompt: str | None, ids: list[int], reason: str, error: str
) -> RequestOutput:
    """The result of a request that was never queued."""
    answer = CompletionOutput(0, "", [], reason, error=error)
    metrics = RequestMetrics(num_prompt_tokens=len(ids))
    return RequestOutput(request_id, prompt, ids, [answer], error=error, metrics=metrics)
