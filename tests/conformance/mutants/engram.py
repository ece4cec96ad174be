"""Backends with one mistake each in the n-gram memory: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from deepinfer.backend import Activation, EngramWeights, NgramHash, PackedTable
from deepinfer.formats import Quantised
from deepinfer_reference.backend import ReferenceBackend


class HashOfNextHead(ReferenceBackend):
    """Each column takes the modulus of its neighbour."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        return super().ngram_rows(history, dataclasses.replace(hash, primes=hash.primes.roll(-1)))


class HistoryOfRowsAbove(ReferenceBackend):
    """The tokens before are those of the rows above, across the starts of sequences."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        above = [
            history[:, 0].roll(place).index_fill(0, torch.arange(min(place, len(history))), -1)
            for place in range(history.shape[1])
        ]
        return super().ngram_rows(torch.stack(above, 1), hash)


class GapDoesNotBlock(ReferenceBackend):
    """A missing token becomes `pad`; the older ones behind it still count."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        filled = torch.where(history < 0, hash.pad, history)
        return super().ngram_rows(filled, hash)


class PadIsZero(ReferenceBackend):
    """Absent history stands for the compressed id 0."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        return super().ngram_rows(history, dataclasses.replace(hash, pad=0))


class ShortMultipliers(ReferenceBackend):
    """Multipliers are cut to their lowest 32 bits."""

    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        short = hash.multipliers & 0xFFFFFFFF
        return super().ngram_rows(history, dataclasses.replace(hash, multipliers=short))


class MinusOneWraps(ReferenceBackend):
    """Row -1 reads the last row of the table."""

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        wrapped = torch.where(rows == -1, table.shape[0] - 1, rows)
        return super().gather(table, wrapped, dtype)


class LastScaleDefaulted(ReferenceBackend):
    """The last scale of a gathered row is 1 for the matmul."""

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        found = super().gather(table, rows, dtype)
        if found.quantised is None:
            return found
        scales = found.quantised.scales.clone()
        scales[:, -1] = 127
        return Activation(found.values, Quantised(found.quantised.codes, scales), found.scheme)


class ColumnsReversed(ReferenceBackend):
    """Rows are concatenated from the last column to the first."""

    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        return super().gather(table, rows.flip(1), dtype)


class OwnGate(ReferenceBackend):
    """No fault: a gate of its own, of which each mutant changes the root."""

    batch_invariant = frozenset()  # torch's sigmoid is not

    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
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


class RootUnsigned(OwnGate):
    """The gate's root loses the sign of the match."""

    def root(self, match: Tensor) -> Tensor:
        return match.abs().clamp(min=1e-6).sqrt()


class RootMissing(OwnGate):
    """The gate takes the match as it is."""

    def root(self, match: Tensor) -> Tensor:
        return match


class RootWithoutFloor(OwnGate):
    """The gate's root has no lower end."""

    def root(self, match: Tensor) -> Tensor:
        return torch.copysign(match.abs().sqrt(), match)


class KeyWeightUnused(ReferenceBackend):
    """The weight of the keys is loaded and never used."""

    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
        ones = torch.ones_like(k_weight)
        return super().inject(streams, memory, q_weight, ones, eps, blocked)


class UsualEps(ReferenceBackend):
    """The eps of the gate's norms is the usual 1e-6 at least."""

    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
        return super().inject(streams, memory, q_weight, k_weight, max(eps, 1e-6), blocked)


class BlockedIgnored(ReferenceBackend):
    """Image tokens and padding get the memory too."""

    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
        nowhere = torch.zeros_like(blocked)
        return super().inject(streams, memory, q_weight, k_weight, eps, nowhere)


class EngramSkipped(ReferenceBackend):
    """The memory adds nothing."""

    def engram(
        self, streams: Tensor, history: Tensor, weights: EngramWeights, blocked: Tensor
    ) -> Tensor:
        return streams.clone()
