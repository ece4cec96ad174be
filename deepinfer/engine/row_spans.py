"""Rows of a step whose logits are asked for beside the draw.

Those are rows that predict prompt tokens whose log-probabilities are wanted, and rows of requests
that take the logits themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from deepinfer.engine.request import Sequence
from deepinfer.engine.scheduler import ScheduledStep


class RowSpan(NamedTuple):
    """Positions first..last-1 of a sequence.

    shift: the row of position p has number p + shift in the step's batch.
    """

    sequence: Sequence
    first: int
    last: int
    shift: int


def prompt_spans(step: ScheduledStep) -> list[RowSpan]:
    """The rows whose next token is one of the prompt, asked for and not described yet.

    A prompt that is computed again after preemption, or by further samples, is described once.
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
    """The rows of requests with on_logits whose logits were not given to it yet."""
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
