"""Mutants of the sampling family: the reference with one fault each, named by its docstring.

Those of `process` change one step of `OwnProcess`, which is a second implementation without fault.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.backend import SamplingParameters, TopLogprobs
from deepinfer.conformance.case import Failure
from deepinfer_reference.sampling import masses
from tests.conformance.mutants.variant import Variant, with_arguments, with_result

INF = math.inf


class OwnProcess(Variant):
    """No fault: float32 softmax, float64 cumulative sums, one row at a time."""

    def process(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        out = torch.empty_like(logits)
        for row in range(len(logits)):
            temperature, top_p, top_k, min_p = (
                float(column[row]) for column in vars(parameters).values()
            )
            out[row] = self.row(logits[row], temperature, top_p, int(top_k), min_p)
        return out

    def row(
        self, logits: Tensor, temperature: float, top_p: float, top_k: int, min_p: float
    ) -> Tensor:
        if bool(torch.isnan(logits).any()) or not math.isfinite(float(logits.max())):
            return torch.full_like(logits, math.nan)
        order = self.order(logits)
        z = logits * (1 / torch.tensor(temperature, dtype=torch.float32))
        if temperature == 0 or not math.isfinite(float(z.amax())):
            return torch.full_like(logits, -INF).index_fill(0, order[:1], 0.0)
        keep = self.kept(torch.softmax(z, -1), order, top_p, top_k, min_p)
        return self.normalised(z, keep)

    def order(self, logits: Tensor) -> Tensor:
        return torch.sort(logits, descending=True, stable=True).indices

    def kept(self, p: Tensor, order: Tensor, top_p: float, top_k: int, min_p: float) -> Tensor:
        ordered = masses(torch.log(p))[order].double()
        before = ordered.cumsum(0) - ordered
        limit = math.floor(top_p * 2.0**31) * float(ordered.sum()) / 2.0**31
        chosen = self.within(before, math.floor(limit) if top_p < 1 else INF)
        if top_k:
            chosen[min(top_k, len(chosen)) :] = False
        keep = torch.zeros_like(chosen).scatter(0, order, chosen)
        return keep & (p / p.max() >= self.least(p, min_p))

    def within(self, before: Tensor, limit: float) -> Tensor:
        return before <= limit

    def least(self, p: Tensor, min_p: float) -> float:
        return min_p

    def normalised(self, z: Tensor, keep: Tensor) -> Tensor:
        return torch.log_softmax(torch.where(keep, z, -INF), -1)


class TopPOneLate(OwnProcess, seen_at="process"):
    """Top-p keeps one token more."""

    def within(self, before: Tensor, limit: float) -> Tensor:
        kept = before <= limit
        return kept | torch.nn.functional.pad(kept, (1, 0), value=True)[:-1]


class TopPStrict(OwnProcess, seen_at="process"):
    """Top-p drops a token when the mass before it is exactly top_p."""

    def within(self, before: Tensor, limit: float) -> Tensor:
        return (before < limit) | (before == 0)


class TopKBeforeTopP(OwnProcess, seen_at="process"):
    """Top-p is measured over what top-k left, not over the whole row."""

    def kept(self, p: Tensor, order: Tensor, top_p: float, top_k: int, min_p: float) -> Tensor:
        if top_k:
            rest = order[min(top_k, len(order)) :]
            p = p.index_fill(0, rest, 0.0)
            p = p / p.sum()
        return super().kept(p, order, top_p, top_k, min_p)


class MinPAbsolute(OwnProcess, seen_at="process"):
    """Min-p is a probability, not a share of the highest one."""

    def least(self, p: Tensor, min_p: float) -> float:
        return min_p / float(p.max())


class MinPNeverRead(OwnProcess, seen_at="process"):
    """The parameter min-p is loaded and never used."""

    def least(self, p: Tensor, min_p: float) -> float:
        return 0.0


class HigherTokenFirst(OwnProcess, seen_at="process"):
    """Equal logits rank the higher token first."""

    def order(self, logits: Tensor) -> Tensor:
        return len(logits) - 1 - super().order(logits.flip(0))


class NotRenormalised(OwnProcess, seen_at="process"):
    """What filters left is not normalised again."""

    def normalised(self, z: Tensor, keep: Tensor) -> Tensor:
        return torch.where(keep, torch.log_softmax(z, -1), -INF)


class ProcessNanSpreads(Variant, seen_at="process", failure=Failure.NAN):
    """A broken row breaks the batch."""

    process = with_result("process", lambda out: torch.where(torch.isnan(out).any(), math.nan, out))


class PositionIgnored(Variant, seen_at="sample"):
    """Random numbers do not depend on the position."""

    sample = with_arguments("sample", positions=torch.zeros_like)


class PositionCut(Variant, seen_at="sample"):
    """Positions count modulo 2^32."""

    sample = with_arguments("sample", positions=lambda positions: positions & 0xFFFFFFFF)


class SeedCut(Variant, seen_at="sample"):
    """Only 32 bits of the seed are used."""

    sample = with_arguments("sample", seeds=lambda seeds: seeds & 0xFFFFFFFF)


class PurposeIgnored(Variant, seen_at="sample"):
    """Residual draws reuse the number of the sample."""

    sample = with_arguments("sample", purpose=lambda purpose: 0)


class DrawDependsOnRow(Variant, seen_at="sample"):
    """A row's random number depends on its place in the batch."""

    sample = with_arguments("sample", positions=lambda own: own + torch.arange(len(own)))


class MassesRounded(Variant, seen_at="sample"):
    """Masses are rounded to the nearest unit, not down: faint tokens weigh too much."""

    def sample(self, logprobs: Tensor, seeds: Tensor, positions: Tensor, purpose: int) -> Tensor:
        unit = 2.0**31
        rounded = torch.log((torch.exp(logprobs.double()) * unit).round() / unit + 2.0**-60)
        return super().sample(rounded, seeds, positions, purpose)


class NanRowDraws(Variant, seen_at="sample"):
    """A row of NaN gives token 0, not -1."""

    sample = with_result("sample", lambda tokens: tokens.clamp(min=0))


class MaskBitsReversed(Variant, seen_at="mask"):
    """Token 0 of a word is its highest bit."""

    def mask(self, logits: Tensor, bits: Tensor) -> Tensor:
        width = logits.shape[1]
        full = torch.nn.functional.pad(logits, (0, -width % 32))
        swapped = full.unflatten(1, (-1, 32)).flip(2).flatten(1)  # type: ignore[no-untyped-call]
        masked = super().mask(swapped, bits)
        return masked.unflatten(1, (-1, 32)).flip(2).flatten(1)[:, :width]  # type: ignore[no-untyped-call]


class MaskSignBitLost(Variant, seen_at="mask"):
    """The sign bit of a word allows nothing."""

    mask = with_arguments("mask", bits=lambda bits: bits & 0x7FFFFFFF)


class TopTiesReversed(Variant, seen_at="top_logprobs"):
    """Equal log-probabilities list the higher token first."""

    def top_logprobs(self, logprobs: Tensor, k: int) -> TopLogprobs:
        flipped = super().top_logprobs(logprobs.flip(1), k)
        return flipped._replace(ids=logprobs.shape[1] - 1 - flipped.ids)
