"""`TokenColumns`: the last tokens of every running sequence, by slot; `plan_batch` reads them.

A decode step takes its inputs from these columns with a few array operations, however many
sequences there are; only prompt chunks look at their sequence's own tokens.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.backend import Batch, Contract, Table
from deepinfer.cache import CacheManager
from deepinfer.engine.batching import NgramHistory
from deepinfer.engine.request import Sequence
from deepinfer.engine.scheduler import Plan

Int64Array = npt.NDArray[np.int64]


class TokenColumns:
    """recent [S, n] int64: raw ids of the last n known tokens, the newest first, -1 for none."""

    def __init__(self, num_slots: int, history: NgramHistory | None) -> None:
        self.history = history
        self.recent: Int64Array = np.full((num_slots, history.order if history else 1), -1)

    def enter(self, sequence: Sequence) -> None:
        """Take over the tokens of a sequence that starts to run in its slot."""
        assert sequence.cache is not None
        last = sequence.tokens[: sequence.known][-self.recent.shape[1] :][::-1]
        row = self.recent[sequence.cache.slot]
        row[:] = -1
        row[: len(last)] = last

    def advanced(self, slots: Int64Array, tokens: Int64Array) -> None:
        """The sequences in these slots got one token each."""
        self.recent[slots, 1:] = self.recent[slots, :-1]
        self.recent[slots, 0] = tokens

    def plan_batch(self, plan: Plan, cache: CacheManager, operators: Contract) -> Batch:
        """The batch of a step, built with numpy and moved to the device once."""
        counts = plan.stops - plan.starts
        if bool(plan.samples.all()) and int(counts.max()) == 1:
            tokens = self.recent[plan.slots, 0]
            positions = plan.starts
            history = self.history.of_recent(self.recent[plan.slots]) if self.history else None
        else:
            bounds = plan.starts.tolist(), plan.stops.tolist()
            parts = list(zip(plan.sequences, *bounds, strict=True))
            tokens = np.concatenate([s.tokens[start:stop] for s, start, stop in parts])
            positions = np.concatenate([np.arange(start, stop) for _, start, stop in parts])
            history = None
            if self.history is not None:
                rows = [self.history.rows(s.tokens, start, stop) for s, start, stop in parts]
                history = np.concatenate(rows)

        def tensor(values: npt.NDArray[np.int64]) -> torch.Tensor:
            return operators.tensor(values, torch.int64)

        blocks = max(1, int(cache.num_blocks[plan.slots].max()))
        pages = max(1, int(cache.num_pages[plan.slots].max()))
        zeros = np.zeros(len(plan.slots), np.int64)
        batch = Batch(
            token_ids=tensor(tokens),
            positions=tensor(positions),
            sequence=tensor(np.repeat(np.arange(len(counts)), counts)),
            query_start=tensor(np.concatenate([[0], np.cumsum(counts)])),
            context_lengths=tensor(plan.stops),
            slots=tensor(plan.slots),
            image_mask=operators.tensor(np.zeros(len(tokens), bool), torch.bool),
            context=Table(tensor(cache.block_table[plan.slots, :blocks]), tensor(zeros)),
            window=Table(
                tensor(cache.page_table[plan.slots, :pages]), tensor(cache.first_page[plan.slots])
            ),
            max_context=int(plan.stops.max()),
            history=tensor(history) if history is not None else None,
        )
        return dataclasses.replace(batch, plan=operators.plan(batch))
