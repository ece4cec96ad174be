"""`Sampler`: draws one token per sequence from the logits of a step.

Order: raw log-probabilities are taken from the unmodified logits; then the engine's blacklist, the
request's allow and deny lists, the end-of-sentence ban, logit bias and penalties; then the engine's
forced top-k, temperature, top-p, top-k, min_p and the draw. Every row is independent of the others.
Source: engine specification, sections 6.2 and 6.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.backend import Contract, SamplingParameters
from deepinfer.backend.sampling import Purpose
from deepinfer.engine.request import Sequence, TokenLogprobs
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.errors import UsageError
from deepinfer.settings.settings import Settings

FLOOR = -9999.0
"""The least log-probability that is returned; it stands for -inf."""


@dataclass(frozen=True)
class SamplingRules:
    """Sampling rules of an engine, which hold for every request.

    blacklist: ids that are never drawn. force_top_k: only the k highest logits count; 0: all do.
    sum_smaller_probs: every token reports its log-probabilities, with the total probability of the
    less probable tokens.
    """

    blacklist: tuple[int, ...] = ()
    force_top_k: int = 0
    sum_smaller_probs: bool = False

    @classmethod
    def from_settings(cls, settings: Settings, vocabulary: int) -> SamplingRules:
        """The rules that the settings ask for; UsageError for ids outside the vocabulary."""
        ranges = settings.token_ranges("DEEPINFER_DECODE_TOKEN_BLACKLIST")
        blacklist = [token for first, last in ranges for token in range(first, last + 1)]
        if blacklist and blacklist[-1] >= vocabulary:
            raise UsageError(
                f"DEEPINFER_DECODE_TOKEN_BLACKLIST names id {blacklist[-1]}; allowed: 0 to "
                f"{vocabulary - 1}, the vocabulary of this checkpoint"
            )
        if len(blacklist) == vocabulary:
            raise UsageError(
                "DEEPINFER_DECODE_TOKEN_BLACKLIST names the whole vocabulary, which leaves nothing "
                "to draw; name fewer ids"
            )
        return cls(
            tuple(blacklist),
            min(settings.integer("DEEPINFER_SAMPLER_FORCE_TOPK"), vocabulary),
            settings.flag("DEEPINFER_COMPUTE_SUM_SMALLER_PROBS"),
        )


NO_RULES = SamplingRules()


@dataclass(frozen=True)
class Drawn:
    """The tokens of a step.

    ids [n] int64: -1 where a row has no distribution to draw from. logprobs: by index into ids, of
    the tokens for which they are asked.
    """

    ids: npt.NDArray[np.int64]
    logprobs: dict[int, TokenLogprobs]


class Sampler:
    """Draws tokens with operators; keeps the parameters of running sequences in arrays by slot."""

    def __init__(
        self, operators: Contract, num_slots: int, eos_id: int, rules: SamplingRules = NO_RULES
    ) -> None:
        self.operators = operators
        self._eos_id = eos_id
        self.rules = rules
        self._blacklist = self._ids(rules.blacklist) if rules.blacklist else None
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_p = np.ones(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._min_p = np.zeros(num_slots, np.float32)
        self._seed = np.zeros(num_slots, np.int64)
        self._special = np.zeros(num_slots, bool)
        self._drawn_last: tuple[npt.NDArray[np.int64], SamplingParameters, Tensor] | None = None

    def enter(self, sequence: Sequence) -> None:
        """Note the parameters of a sequence that starts to run in its slot."""
        slot, params = sequence.slot, sequence.request.params
        self._drawn_last = None
        with np.errstate(over="ignore", under="ignore"):  # an infinite temperature is uniform
            self._temperature[slot] = params.temperature
            self._top_p[slot] = params.top_p
        self._top_k[slot] = max(params.top_k, 0)
        self._min_p[slot] = params.min_p
        self._seed[slot] = np.uint64(sequence.seed).astype(np.int64)
        self._special[slot] = params.changes_logits or self._describes(params)

    def draw(
        self,
        logits: Tensor,
        slots: npt.NDArray[np.int64],
        rows: list[Sequence],
        positions: npt.NDArray[np.int64],
    ) -> Drawn:
        """Draw one token from each row of logits [n, V].

        slots [n], rows: slot and sequence of each row. positions [n]: the positions that the drawn
        tokens get in their sequences, counted from the start of the prompt.
        """
        special = np.flatnonzero(self._special[slots]).tolist()
        wanted = [i for i in special if self._describes(rows[i].request.params)]
        tensor = self.operators.tensor
        raw = self.raw_logprobs(logits[tensor(wanted, torch.int64)]) if wanted else None
        parameters, seeds = self._parameters(slots)
        processed = self.operators.process(self._adjusted(logits, special, rows), parameters)
        drawn = self.operators.sample(
            processed, seeds, tensor(positions, torch.int64), Purpose.SAMPLE
        )
        ids = drawn.cpu().numpy()
        for place in special:
            ids[place] = _forced(rows[place], int(ids[place]))
        logprobs: dict[int, TokenLogprobs] = {}
        if raw is not None:
            count = max(rows[place].request.params.top_logprobs for place in wanted)
            places = tensor(wanted, torch.int64)
            described = self.describe(raw, ids[wanted].clip(0), count, processed[places])
            for place, found in zip(wanted, described, strict=True):
                own = rows[place].request.params.top_logprobs
                found.top = dict(list(found.top.items())[:own])
                if ids[place] >= 0:
                    logprobs[place] = found
        return Drawn(ids, logprobs)

    def _parameters(self, slots: npt.NDArray[np.int64]) -> tuple[SamplingParameters, Tensor]:
        """Parameters and seeds of these slots; cached while the same sequences draw."""
        if self._drawn_last is None or not np.array_equal(slots, self._drawn_last[0]):
            tensor = self.operators.tensor
            parameters = SamplingParameters(
                tensor(self._temperature[slots], torch.float32),
                tensor(self._top_p[slots], torch.float32),
                tensor(self._top_k[slots], torch.int64),
                tensor(self._min_p[slots], torch.float32),
            )
            seeds = tensor(self._seed[slots], torch.int64)
            self._drawn_last = slots.copy(), parameters, seeds
        return self._drawn_last[1], self._drawn_last[2]

    def _describes(self, params: SamplingParams) -> bool:
        """Whether the tokens of a request with these parameters report their log-probabilities."""
        return params.wants_logprobs or self.rules.sum_smaller_probs

    def _adjusted(self, logits: Tensor, special: list[int], rows: list[Sequence]) -> Tensor:
        """The logits with lists, bans, bias and penalties applied; a copy if anything changes."""
        if self._blacklist is None and not special and not self.rules.force_top_k:
            return logits
        adjusted = logits.clone()
        if self._blacklist is not None:
            adjusted[:, self._blacklist] = float("-inf")
        for place in special:
            self._adjust(adjusted[place], rows[place])
        if self.rules.force_top_k:
            adjusted = self._highest(adjusted)
        return adjusted

    def _highest(self, logits: Tensor) -> Tensor:
        """Set all but the k highest logits of each row [n, V] to -inf; equal ones go by id.

        A row with NaN or +inf is left unchanged: nothing can be drawn from it.
        """
        best = self.operators.top_logprobs(logits, self.rules.force_top_k)
        kept = torch.full_like(logits, float("-inf"))
        kept.scatter_(1, best.ids, best.logprobs)
        unsound = (logits.isnan() | logits.isposinf()).any(dim=1, keepdim=True)
        return torch.where(unsound, logits, kept)

    def raw_logprobs(self, logits: Tensor) -> Tensor:
        """The model's own log-probabilities [M, V]: temperature 1 and no filter."""
        tensor, count = self.operators.tensor, len(logits)
        plain = SamplingParameters(
            tensor([1.0] * count, torch.float32),
            tensor([1.0] * count, torch.float32),
            tensor([0] * count, torch.int64),
            tensor([0.0] * count, torch.float32),
        )
        return self.operators.process(logits, plain)

    def describe(
        self,
        raw: Tensor,
        tokens: npt.NDArray[np.integer],
        count: int,
        processed: Tensor | None = None,
    ) -> list[TokenLogprobs]:
        """Describe `tokens` [M] by rows of log-probabilities.

        raw [M, V]: the model's own log-probabilities, of which the `count` highest are listed too.
        processed [M, V]: those that the tokens were drawn from; None for prompt tokens, which were
        not drawn.
        """
        best = self.operators.top_logprobs(raw, count)
        columns = self._ids(tokens.tolist())[:, None]
        chosen = raw.gather(1, columns)[:, 0]
        drawn = chosen if processed is None else processed.gather(1, columns)[:, 0]
        smaller: list[float | None] = [None] * len(tokens)
        if self.rules.sum_smaller_probs and processed is not None:
            smaller = [*_mass_below(processed, columns).tolist()]
        return [
            TokenLogprobs(
                raw=max(own, FLOOR),
                processed=max(after, FLOOR),
                top={i: max(value, FLOOR) for i, value in zip(ids, values, strict=True)},
                sum_smaller_probs=mass,
            )
            for own, after, ids, values, mass in zip(
                chosen.tolist(),
                drawn.tolist(),
                best.ids.tolist(),
                best.logprobs.tolist(),
                smaller,
                strict=True,
            )
        ]

    def _ids(self, ids: Iterable[int]) -> Tensor:
        return self.operators.tensor(list(ids), torch.int64)

    def _adjust(self, row: Tensor, sequence: Sequence) -> None:
        """Apply a request's lists, bans, bias and penalties to its row of logits [V], in place."""
        params = sequence.request.params
        if params.allowed_token_ids is not None:
            allowed = self._ids(params.allowed_token_ids)
            kept = row[allowed].clone()
            row.fill_(float("-inf"))
            row[allowed] = kept
        if params.banned_token_ids:
            row[self._ids(params.banned_token_ids)] = float("-inf")
        if sequence.output_length < params.first_n_token_no_eos:
            row[self._eos_id] = float("-inf")
        if sequence.output_length < params.min_tokens:
            stops = {*params.stop_token_ids, *(() if params.ignore_eos else (self._eos_id,))}
            if stops:
                row[self._ids(stops)] = float("-inf")
        if params.logit_bias:
            row[self._ids(params.logit_bias)] += self.operators.tensor(
                list(params.logit_bias.values()), row.dtype
            )
        self._penalise(row, sequence, params)

    def _penalise(self, row: Tensor, sequence: Sequence, params: SamplingParams) -> None:
        if params.repetition_penalty != 1:
            seen = self._ids(np.unique(sequence.tokens).tolist())
            values = row[seen]
            factor = params.repetition_penalty
            row[seen] = torch.where(values > 0, values / factor, values * factor)
        if params.frequency_penalty or params.presence_penalty:
            ids, counts = np.unique(sequence.output, return_counts=True)
            if len(ids):
                amount = params.frequency_penalty * counts + params.presence_penalty
                row[self._ids(ids.tolist())] -= self.operators.tensor(amount, row.dtype)


def _forced(sequence: Sequence, token: int) -> int:
    """The token that golden_token_ids force at this place, or else the one that was drawn."""
    golden = sequence.request.params.golden_token_ids
    place = sequence.output_length
    return golden[place] if token >= 0 and place < len(golden) else token


def _mass_below(processed: Tensor, columns: Tensor) -> Tensor:
    """The total probability [M] float64 of each chosen token and all less probable ones.

    processed [M, V]: log-probabilities. columns [M, 1]: ids of the chosen tokens. Of equally
    probable tokens those with lower ids count as less probable.
    """
    probabilities = processed.double().exp()
    own = probabilities.gather(1, columns)
    ids = torch.arange(probabilities.shape[1], device=probabilities.device)
    counted = (probabilities < own) | ((probabilities == own) & (ids <= columns))
    return (probabilities * counted).sum(1)


def nothing_to_draw(params: SamplingParams) -> str:
    """The error message for a row that has no distribution to draw from."""
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
