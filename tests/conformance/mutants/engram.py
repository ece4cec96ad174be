"""Backends with one mistake each in the n-gram memory: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, NgramHash, PackedTable
from deepinfer.conformance.case import Failure
from deepinfer.formats import Quantised
from tests.conformance.mutants.variant import Variant, with_arguments


class HashOfNextHead(Variant, seen_at="ngram_rows engram model.vectors"):
    """Each column takes the modulus of its neighbour."""

    ngram_rows = with_arguments(
        "ngram_rows", hash=lambda hash: replace(hash, primes=hash.primes.roll(-1))
    )


class HistoryOfRowsAbove(Variant, seen_at="ngram_rows model.bundled"):
    """The tokens before are those of the rows above, across the starts of sequences."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        above = [
            history[:, 0].roll(place).index_fill(0, torch.arange(min(place, len(history))), -1)
            for place in range(history.shape[1])
        ]
        return super().ngram_rows(torch.stack(above, 1), hash)


class GapDoesNotBlock(Variant, seen_at="ngram_rows"):
    """A missing token becomes `pad`; the older ones behind it still count."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        filled = torch.where(history < 0, hash.pad, history)
        return super().ngram_rows(filled, hash)


class PadIsZero(Variant, seen_at="ngram_rows"):
    """Absent history stands for the compressed id 0."""

    ngram_rows = with_arguments("ngram_rows", hash=lambda hash: replace(hash, pad=0))


class ShortMultipliers(Variant, seen_at="ngram_rows"):
    """Multipliers are cut to their lowest 32 bits."""

    ngram_rows = with_arguments(
        "ngram_rows", hash=lambda hash: replace(hash, multipliers=hash.multipliers & 0xFFFFFFFF)
    )


class MinusOneWraps(Variant, seen_at="gather", failure=Failure.RAISES):
    """Row -1 reads the last row of the table."""

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        wrapped = torch.where(rows == -1, table.shape[0] - 1, rows)
        return super().gather(table, wrapped, dtype)


class LastScaleDefaulted(Variant, seen_at="gather engram"):
    """The last scale of a gathered row is 1 for the matmul."""

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        found = super().gather(table, rows, dtype)
        if found.quantised is None:
            return found
        scales = found.quantised.scales.clone()
        scales[:, -1] = 127
        return Activation(found.values, Quantised(found.quantised.codes, scales), found.scheme)


class ColumnsReversed(Variant, seen_at="gather"):
    """Rows are concatenated from the last column to the first."""

    gather = with_arguments("gather", rows=lambda rows: rows.flip(1))


class OwnGate(Variant):
    """No fault: a gate of its own, of which each mutant changes the root."""

    batch_invariant = frozenset()  # torch's sigmoid is not

    def inject(self, *arguments: Any) -> Tensor:
        streams, memory, q_weight, k_weight, eps, blocked = arguments
        wide = torch.float64 if streams.dtype == torch.float64 else torch.float32
        x = streams.to(wide)
        parts = memory.to(wide).unflatten(1, (streams.shape[1] + 1, streams.shape[2]))
        keys, value = parts[:, :-1], parts[:, -1:]
        match = (x * q_weight.to(wide) * k_weight.to(wide) * keys).sum(2, keepdim=True)
        for one in (x, keys):
            match = match / ((one * one).mean(2, keepdim=True) + eps).sqrt()
        gate = torch.sigmoid(self.root(match / streams.shape[2] ** 0.5))
        added = (x + gate * value).to(streams.dtype)
        return torch.where(blocked[:, None, None], streams, added)

    def root(self, match: Tensor) -> Tensor:
        return torch.copysign(match.abs().clamp(min=1e-6).sqrt(), match)


class RootUnsigned(OwnGate, seen_at="inject"):
    """The gate's root loses the sign of the match."""

    def root(self, match: Tensor) -> Tensor:
        return match.abs().clamp(min=1e-6).sqrt()


class RootMissing(OwnGate, seen_at="inject"):
    """The gate takes the match as it is."""

    def root(self, match: Tensor) -> Tensor:
        return match


class RootWithoutFloor(OwnGate, seen_at="inject"):
    """The gate's root has no lower end."""

    def root(self, match: Tensor) -> Tensor:
        return torch.copysign(match.abs().sqrt(), match)


class KeyWeightUnused(Variant, seen_at="inject"):
    """The weight of the keys is loaded and never used."""

    inject = with_arguments("inject", k_weight=torch.ones_like)


class UsualEps(Variant, seen_at="inject"):
    """The eps of the gate's norms is the usual 1e-6 at least."""

    inject = with_arguments("inject", eps=lambda eps: max(eps, 1e-6))


class BlockedIgnored(Variant, seen_at="inject"):
    """Image tokens and padding get the memory too."""

    inject = with_arguments("inject", blocked=torch.zeros_like)


class EngramSkipped(Variant, seen_at="engram"):
    """The memory adds nothing."""

    def engram(self, streams: Tensor, *rest: Any) -> Tensor:
        return streams.clone()
