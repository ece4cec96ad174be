"""Log records of each request with its id: its course at DEBUG, failures at higher levels."""

from __future__ import annotations

import logging

from deepinfer.engine.request import FinishReason, Request, Sequence
from deepinfer.logs import RequestLogger

_log = logging.getLogger(__name__)
_FINE = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT)


def arrived(request: Request) -> None:
    """Log that a request was queued."""
    if _log.isEnabledFor(logging.DEBUG):
        RequestLogger(_log, request.request_id).debug(
            "arrived: %d prompt tokens, n %d, max_tokens %d",
            len(request.prompt),
            request.params.n,
            request.params.max_tokens,
        )


def first_token(sequence: Sequence) -> None:
    """Log that a sequence got its first token."""
    if _log.isEnabledFor(logging.DEBUG):
        request = sequence.request
        RequestLogger(_log, request.request_id).debug(
            "first token of sample %d after %.1f ms",
            sequence.index,
            (sequence.first_token_at - request.arrival) * 1e3,
        )


def preempted(sequence: Sequence) -> None:
    """Log that a sequence was preempted."""
    if _log.isEnabledFor(logging.DEBUG):
        RequestLogger(_log, sequence.request.request_id).debug(
            "preempted: sample %d with %d tokens, for the %d. time",
            sequence.index,
            sequence.known,
            sequence.preemptions,
        )


def finished(request: Request) -> None:
    """Log the end of a request: at DEBUG, WARNING if it failed, ERROR if a step failed."""
    for sequence in request.sequences:
        if sequence.finish_reason not in _FINE:
            level = logging.WARNING if sequence.exception is None else logging.ERROR
            RequestLogger(_log, request.request_id).log(
                level,
                "failed: sample %d, %s: %s",
                sequence.index,
                sequence.finish_reason,
                sequence.error,
            )
        elif _log.isEnabledFor(logging.DEBUG):
            RequestLogger(_log, request.request_id).debug(
                "finished: sample %d, %s, %d tokens in %.1f ms",
                sequence.index,
                sequence.finish_reason,
                sequence.output_length,
                (sequence.finished_at - request.arrival) * 1e3,
            )
