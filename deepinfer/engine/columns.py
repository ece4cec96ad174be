"""`TokenColumns`: the last tokens of every running sequence and when it ends, by slot.

A decode step takes its inputs from these columns with a few array operations, however many
sequences there are; only prompt chunks look at their sequence's own tokens.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.backend import Batch, Contract, Table
from deepinfer.cache import CacheManager
from deepinfer.engine.batching import NgramHistory
from deepinfer.engine.request import Sequence
from deepinfer.engine.scheduler import Plan
from deepinfer.engine.token_buffer import TokenBuffer

Int64Array = npt.NDArray[np.int64]


class TokenColumns:
    """What a step reads and writes of every running sequence, in columns by slot.

    recent [S, n] int64: raw ids of the last n known tokens, the newest first, -1 for none. known
    [S]: tokens. stop_at [S]: known tokens at which it ends by its length. stops_at_eos [S] and
    watched [S] bool: what must be looked at after a token: the end-of-sentence token, or every one
    (a first token, stop ids, a callback).
    """

    def __init__(self, num_slots: int, history: NgramHistory | None, eos_id: int) -> None:
        self.history = history
        self.recent: Int64Array = np.full((num_slots, history.order if history else 1), -1)
        self.known: Int64Array = np.zeros(num_slots, np.int64)
        self.stop_at: Int64Array = np.zeros(num_slots, np.int64)
        self.stops_at_eos = np.zeros(num_slots, bool)
        self.watched = np.zeros(num_slots, bool)
        self.buffer = TokenBuffer(num_slots)
        self._eos_id = eos_id
        self._decode = _DecodeTensors()

    def enter(self, sequence: Sequence, max_model_len: int) -> None:
        """Take over the tokens of a sequence that starts to run in its slot."""
        assert sequence.cache is not None
        slot, params = sequence.cache.slot, sequence.request.params
        last = sequence.tokens[: sequence.known][-self.recent.shape[1] :][::-1]
        row = self.recent[slot]
        row[:] = -1
        row[: len(last)] = last
        self.known[slot] = sequence.known
        self.stop_at[slot] = min(sequence.prompt_length + params.max_tokens, max_model_len)
        self.stops_at_eos[slot] = not params.ignore_eos
        self.watched[slot] = (
            not sequence.output_length
            or bool(params.stop_token_ids)
            or sequence.request.on_token is not None
        )
        sequence.enter(self.buffer, slot)

    def unwatch(self, slot: int) -> None:
        """Nothing but length and the end-of-sentence token must be looked at any more."""
        self.watched[slot] = False

    def advance(self, slots: Int64Array, tokens: Int64Array) -> npt.NDArray[np.bool_]:
        """The sequences in these slots got one token each, -1 for none; who must be looked at."""
        drawn = tokens >= 0
        if not drawn.all():
            looked = ~drawn
            looked[drawn] = self.advance(slots[drawn], tokens[drawn])
            return looked
        recent = np.empty((len(slots), self.recent.shape[1]), np.int64)
        recent[:, 0] = tokens
        recent[:, 1:] = self.recent[slots, :-1]
        self.recent[slots] = recent
        known = self.known[slots] + 1
        self.known[slots] = known
        self.buffer.append(slots, tokens)
        looked = self.watched[slots] | (known >= self.stop_at[slots])
        looked |= self.stops_at_eos[slots] & (tokens == self._eos_id)
        return np.asarray(looked)

    def plan_batch(self, plan: Plan, cache: CacheManager, operators: Contract) -> Batch:
        """The batch of a step, built with numpy and moved to the device once."""
        counts = plan.stops - plan.starts
        blocks = max(1, int(cache.num_blocks[plan.slots].max()))
        pages = max(1, int(cache.num_pages[plan.slots].max()))

        def tensor(values: npt.NDArray[np.int64]) -> torch.Tensor:
            return operators.tensor(values, torch.int64)

        if plan.only_draws:
            recent = self.recent[plan.slots]
            tokens = recent[:, 0]
            positions = plan.starts
            history = self.history.of_recent(recent) if self.history else None
            rows = self._decode.of(len(counts), operators)
        else:
            bounds = plan.starts.tolist(), plan.stops.tolist()
            parts = list(zip(plan.sequences, *bounds, strict=True))
            tokens = np.concatenate([s.tokens[start:stop] for s, start, stop in parts])
            positions = np.concatenate([np.arange(start, stop) for _, start, stop in parts])
            history = None
            if self.history is not None:
                found = [self.history.rows(s.tokens, start, stop) for s, start, stop in parts]
                history = np.concatenate(found)
            rows = _RowTensors.of(counts, operators)
        batch = Batch(
            token_ids=tensor(tokens),
            positions=tensor(positions),
            sequence=rows.sequence,
            query_start=rows.query_start,
            context_lengths=tensor(plan.stops),
            slots=tensor(plan.slots),
            image_mask=rows.image_mask,
            context=Table(tensor(cache.block_table[:, :blocks][plan.slots]), rows.zeros),
            window=Table(
                tensor(cache.page_table[:, :pages][plan.slots]),
                tensor(cache.first_page[plan.slots]),
            ),
            max_context=int(plan.stops.max()),
            history=tensor(history) if history is not None else None,
        )
        return dataclasses.replace(batch, plan=operators.plan(batch))


class _RowTensors(NamedTuple):
    """What of a batch follows from the number of rows of each sequence."""

    sequence: torch.Tensor
    query_start: torch.Tensor
    image_mask: torch.Tensor
    zeros: torch.Tensor

    @classmethod
    def of(cls, counts: Int64Array, operators: Contract) -> _RowTensors:
        sequence = np.repeat(np.arange(len(counts)), counts)
        return cls(
            operators.tensor(sequence, torch.int64),
            operators.tensor(np.concatenate([[0], np.cumsum(counts)]), torch.int64),
            operators.tensor(np.zeros(len(sequence), bool), torch.bool),
            operators.tensor(np.zeros(len(counts), np.int64), torch.int64),
        )


class _DecodeTensors:
    """The row tensors of the last step in which every sequence had one row."""

    def __init__(self) -> None:
        self._count = -1
        self._rows: _RowTensors | None = None

    def of(self, count: int, operators: Contract) -> _RowTensors:
        """Those of `count` sequences, kept from the last step where that had as many."""
        if self._rows is None or count != self._count:
            self._rows = _RowTensors.of(np.ones(count, np.int64), operators)
            self._count = count
        return self._rows
