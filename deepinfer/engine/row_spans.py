"""Rows of a step whose logits are needed for something else than drawing a token.

These are rows that predict prompt tokens, for requests with prompt_logprobs, and all rows of
requests with on_logits.
"""

from __future__ import annotations

from typing import NamedTuple

from deepinfer.engine.request import Sequence
from deepinfer.engine.scheduler import ScheduledStep


class RowSpan(NamedTuple):
    """The rows of positions first..last-1 of a sequence.

    shift: the row of position p is row p + shift of the batch.
    """

    sequence: Sequence
    first: int
    last: int
    shift: int


def prompt_spans(step: ScheduledStep) -> list[RowSpan]:
    """Rows that predict prompt tokens whose log-probabilities are wanted and not there yet.

    A prompt that is computed again, after a preemption or by a further sample, has no such rows.
    """
    if step.rows.only_draws:
        return []
    spans = []
    for span in _spans(step):
        request = span.sequence.request
        if not request.params.prompt_logprobs or span.sequence.index:
            continue
        first = max(span.first, len(request.prompt_logprobs))
        last = min(span.last, span.sequence.prompt_length - 1)
        if first < last:
            spans.append(span._replace(first=first, last=last))
    return spans


def captured_spans(step: ScheduledStep) -> list[RowSpan]:
    """Rows of requests with on_logits whose logits it was not called with yet."""
    return [
        span._replace(first=max(span.first, span.sequence.captured))
        for span in _spans(step)
        if span.sequence.request.on_logits is not None and span.sequence.captured < span.last
    ]


def _spans(step: ScheduledStep) -> list[RowSpan]:
    """All rows of every sequence."""
    rows = step.rows
    bounds = zip(rows.starts.tolist(), rows.stops.tolist(), rows.last_rows.tolist(), strict=True)
    return [
        RowSpan(sequence, start, stop, last_row + 1 - stop)
        for sequence, (start, stop, last_row) in zip(step.sequences, bounds, strict=True)
    ]
