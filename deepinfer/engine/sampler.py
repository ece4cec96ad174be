"""`Sampler`: from the logits of a step to one token per sequence, with their log-probabilities.

Order: raw log-probabilities are taken from the unmodified logits; then the engine's blacklist, the
request's allow and deny lists, the end-of-sentence ban, logit bias and penalties; then temperature,
top-p, top-k, min_p and the draw. Every row is independent of the others. Source: engine
specification, sections 6.2 and 6.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.backend import Contract, Purpose, SamplingParameters
from deepinfer.engine.request import Sequence as Running
from deepinfer.engine.request import TokenLogprobs
from deepinfer.engine.sampling_params import SamplingParams

FLOOR = -9999.0
"""What -inf becomes in a returned log-probability."""


@dataclass(frozen=True)
class Drawn:
    """Tokens of a step: ids [n] int64, -1 where a row had no distribution to draw from."""

    ids: npt.NDArray[np.int64]
    logprobs: list[TokenLogprobs | None]


class Sampler:
    """Parameters of the running sequences in columns by slot, and the operators that draw."""

    def __init__(
        self, operators: Contract, num_slots: int, eos_id: int, blacklist: Sequence[int] = ()
    ) -> None:
        self._operators = operators
        self._eos_id = eos_id
        self._blacklist = self._ids(blacklist) if blacklist else None
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_p = np.ones(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._min_p = np.zeros(num_slots, np.float32)
        self._seed = np.zeros(num_slots, np.int64)
        self._special = np.zeros(num_slots, bool)

    def enter(self, sequence: Running) -> None:
        """Take over the parameters of a sequence that starts to run in its slot."""
        assert sequence.cache is not None
        slot, params = sequence.cache.slot, sequence.request.params
        with np.errstate(over="ignore", under="ignore"):  # an infinite temperature is uniform
            self._temperature[slot] = params.temperature
            self._top_p[slot] = params.top_p
        self._top_k[slot] = max(params.top_k, 0)
        self._min_p[slot] = params.min_p
        self._seed[slot] = np.uint64(sequence.seed).astype(np.int64)
        self._special[slot] = params.changes_logits or params.wants_logprobs

    def draw(self, logits: Tensor, slots: npt.NDArray[np.int64], rows: list[Running]) -> Drawn:
        """One token per row of logits [n, V]; slots [n] and rows say whose they are."""
        special = np.flatnonzero(self._special[slots])
        wanted = [i for i in special.tolist() if rows[i].request.params.wants_logprobs]
        raw = self.raw_logprobs(logits[wanted]) if wanted else None
        adjusted = logits
        if self._blacklist is not None or len(special):
            adjusted = logits.clone()
            if self._blacklist is not None:
                adjusted[:, self._blacklist] = float("-inf")
            for place in special.tolist():
                self._adjust(adjusted[place], rows[place])
        tensor = self._operators.tensor
        positions = np.fromiter((s.known for s in rows), np.int64, len(rows))
        processed = self._operators.process(
            adjusted,
            SamplingParameters(
                tensor(self._temperature[slots], torch.float32),
                tensor(self._top_p[slots], torch.float32),
                tensor(self._top_k[slots], torch.int64),
                tensor(self._min_p[slots], torch.float32),
            ),
        )
        drawn = self._operators.sample(
            processed,
            tensor(self._seed[slots], torch.int64),
            tensor(positions, torch.int64),
            Purpose.SAMPLE,
        )
        ids = drawn.cpu().numpy()
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        for own, place in enumerate(wanted):
            token, count = int(ids[place]), rows[place].request.params.top_logprobs
            if token >= 0 and raw is not None:
                logprobs[place] = self.describe(raw[own], token, count, processed[place])
        return Drawn(ids, logprobs)

    def raw_logprobs(self, logits: Tensor) -> Tensor:
        """Log-probabilities [M, V] of the model itself: temperature 1, nothing filtered."""
        tensor, count = self._operators.tensor, len(logits)
        plain = SamplingParameters(
            tensor([1.0] * count, torch.float32),
            tensor([1.0] * count, torch.float32),
            tensor([0] * count, torch.int64),
            tensor([0.0] * count, torch.float32),
        )
        return self._operators.process(logits, plain)

    def describe(
        self, raw: Tensor, token: int, count: int, processed: Tensor | None = None
    ) -> TokenLogprobs:
        """Log-probabilities of `token` and of the `count` best tokens of a raw row [V]."""
        best = self._operators.top_logprobs(raw[None], count)
        pairs = zip(best.ids[0].tolist(), best.logprobs[0].tolist(), strict=True)
        chosen = float(raw[token])
        return TokenLogprobs(
            raw=max(chosen, FLOOR),
            processed=max(chosen if processed is None else float(processed[token]), FLOOR),
            top={i: max(value, FLOOR) for i, value in pairs},
        )

    def _ids(self, ids: Iterable[int]) -> Tensor:
        return self._operators.tensor(list(ids), torch.int64)

    def _adjust(self, row: Tensor, sequence: Running) -> None:
        """Apply lists, bans, bias and penalties to one row of logits [V], in place."""
        params = sequence.request.params
        if params.allowed_token_ids is not None:
            allowed = self._ids(params.allowed_token_ids)
            kept = row[allowed].clone()
            row.fill_(float("-inf"))
            row[allowed] = kept
        if params.banned_token_ids:
            row[self._ids(params.banned_token_ids)] = float("-inf")
        if sequence.output_length < params.min_tokens:
            stops = {*params.stop_token_ids, *(() if params.ignore_eos else (self._eos_id,))}
            if stops:
                row[self._ids(stops)] = float("-inf")
        if params.logit_bias:
            row[self._ids(params.logit_bias)] += self._operators.tensor(
                list(params.logit_bias.values()), row.dtype
            )
        self._penalise(row, sequence, params)

    def _penalise(self, row: Tensor, sequence: Running, params: SamplingParams) -> None:
        if params.repetition_penalty != 1:
            seen = self._ids(np.unique(sequence.tokens[: sequence.known]).tolist())
            values = row[seen]
            factor = params.repetition_penalty
            row[seen] = torch.where(values > 0, values / factor, values * factor)
        if params.frequency_penalty or params.presence_penalty:
            ids, counts = np.unique(sequence.output, return_counts=True)
            if len(ids):
                amount = params.frequency_penalty * counts + params.presence_penalty
                row[self._ids(ids.tolist())] -= self._operators.tensor(amount, row.dtype)


def nothing_to_draw(params: SamplingParams) -> str:
    """Why a row had no distribution to draw from, and what to do."""
    message = (
        "the model returned NaN, +inf or no finite logit for this request; check the checkpoint, "
        "or use compute fp32 to find where it starts"
    )
    if params.changes_logits:
        message += (
            ". This also happens when allowed_token_ids, banned_token_ids, min_tokens, logit_bias "
            "and the engine's blacklist leave no token: allow more"
        )
    return message
