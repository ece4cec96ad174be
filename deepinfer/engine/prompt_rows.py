"""`prompt_parts`: which rows of a step predict prompt tokens whose log-probabilities are wanted."""

from __future__ import annotations

from typing import NamedTuple

from deepinfer.engine.request import Sequence
from deepinfer.engine.scheduler import Plan


class PromptPart(NamedTuple):
    """Prompt positions first..last-1 of a sequence, whose rows predict the token after each.

    shift: the row of position p has number p + shift in the step's batch.
    """

    sequence: Sequence
    first: int
    last: int
    shift: int


def prompt_parts(plan: Plan) -> list[PromptPart]:
    """The parts of a step that are asked for and not known yet.

    A prompt that is computed again after preemption, or by further samples, is described once.
    """
    if plan.only_draws:
        return []
    parts = []
    last_rows = plan.last_rows
    for place, sequence in enumerate(plan.sequences):
        request = sequence.request
        if not request.params.prompt_logprobs or sequence.index:
            continue
        stop = int(plan.stops[place])
        first = max(int(plan.starts[place]), len(request.prompt_logprobs))
        last = min(stop, sequence.prompt_length - 1)
        if first < last:
            shift = int(last_rows[place]) + 1 - stop
            parts.append(PromptPart(sequence, first, last, shift))
    return parts
