"""What a request returns: one `RequestOutput` at its end, and `RequestDelta`s while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from deepinfer.engine.request import Request, Sequence, TokenLogprobs


@dataclass(frozen=True)
class CompletionOutput:
    """One sample of a request. index: its number among the n samples.

    finish_reason: stop, length, abort, error, insufficient_system_resource or
    prompt_length_exceeded. stop_reason: the stop string or stop id that ended it; None for the
    end-of-sentence token. token_ids: all generated tokens, the one that ended it included. text:
    the decoded tokens without special tokens, and without the stop unless include_stop is set.
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
        """The sum of the processed log-probabilities; None where they were not asked for."""
        if self.logprobs is None:
            return None
        return sum(token.processed for token in self.logprobs)


@dataclass(frozen=True)
class RequestMetrics:
    """Times of one request in seconds, and its token counts.

    arrival_time: when it was queued, since the epoch. queue_time: from arrival to its first row.
    time_to_first_token: from arrival to the first token. inter_token_latency: the mean time between
    two tokens of a sample. total: from arrival to the end. None: the request did not get there.
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
        """Measure a finished request."""
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
    """The result of one request, of a failed one too.

    prompt: the prompt if it was a text. prompt_logprobs: one entry per prompt token, None for the
    first, which nothing predicts. error: why the request failed, "" if it did not. The properties
    are those of the first sample.
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
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.outputs[0].logprobs


@dataclass(frozen=True)
class RequestDelta:
    """The text and the tokens that were added to one sample since its last delta.

    All texts of a sample, concatenated, are the text of its result; so are the token ids.
    finish_reason is "" in all deltas but the last, which also has `error` if the sample failed.
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
    """The result of a finished sequence, whose decoded text is `text`."""
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
