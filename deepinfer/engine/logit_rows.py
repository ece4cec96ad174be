"""`LogitRows`: which rows of a step need logits, and where those of a sequence are among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.request import Sequence
from deepinfer.engine.scheduler import Plan

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PromptPart:
    """Prompt positions first..last-1 of a sequence, whose rows predict the token after each.

    place: of the row of `first` among the rows with logits.
    """

    sequence: Sequence
    first: int
    last: int
    place: int


@dataclass(frozen=True)
class LogitRows:
    """rows: row numbers of the batch, ascending. samples: places of the rows that are drawn from.

    prompts: parts whose log-probabilities are asked for and not known yet; a prompt that is
    computed again after preemption is described once.
    """

    rows: Int64Array
    samples: Int64Array
    prompts: list[PromptPart]

    @classmethod
    def of(cls, plan: Plan) -> LogitRows:
        """The rows of a step: the last row of sequences that draw, and wanted prompt rows."""
        ends = np.cumsum(plan.stops - plan.starts)
        drawn = ends[plan.samples] - 1
        wanted = [
            place
            for place, sequence in enumerate(plan.sequences)
            if sequence.request.params.prompt_logprobs
            and sequence.index == 0
            and len(sequence.request.prompt_logprobs) < sequence.prompt_length - 1
        ]
        if not wanted:
            return cls(drawn, np.arange(len(drawn)), [])
        spans = []
        for place in wanted:
            sequence, stop = plan.sequences[place], int(plan.stops[place])
            first = max(int(plan.starts[place]), len(sequence.request.prompt_logprobs))
            last = min(stop, sequence.prompt_length - 1)
            if first < last:
                shift = int(ends[place]) - stop  # the row of position p has number p + shift
                spans.append((sequence, first, last, shift))
        rows = np.unique(
            np.concatenate([drawn, *(np.arange(f, last) + shift for _, f, last, shift in spans)])
        )
        prompts = [
            PromptPart(sequence, first, last, int(np.searchsorted(rows, first + shift)))
            for sequence, first, last, shift in spans
        ]
        return cls(rows, np.searchsorted(rows, drawn), prompts)
