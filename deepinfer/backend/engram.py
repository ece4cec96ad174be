"""Engram family: hashed n-gram memory added to the residual streams.

n token orders up to the configured size, C hash columns, W table width. Source: model
specification, section 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.backend.dense import Dense
from deepinfer.backend.facts import stored_kind, streams_of
from deepinfer.backend.operators import primitive, step
from deepinfer.backend.values import Activation, PackedLinear, PackedTable


@dataclass(frozen=True)
class NgramHash:
    """Constants of one Engram layer's hash, int64 tensors on the device.

    multipliers [n]; primes [C] and offsets [C], columns by order and then by head; pad: compressed
    id that stands for absent history.
    """

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor
    heads: int
    pad: int


@dataclass(frozen=True)
class EngramWeights:
    """Packed weights of one Engram layer: table [rows, W], wkv [(S+1)*H, C*W], q and k [S, H]."""

    table: PackedTable
    hash: NgramHash
    wkv: PackedLinear
    q_weight: Tensor
    k_weight: Tensor
    eps: float


class Engram(Dense):
    """Lookup, projection and gate of the n-gram memory."""

    @primitive(
        rows="history",
        facts=lambda call: {"orders": call.history.shape[1], "columns": len(call.hash.primes)},
        inherited=("dtype",),
    )
    def ngram_rows(self, history: Tensor, hash: NgramHash) -> Tensor:
        """Table rows of each token's n-grams: history [T, n] int64 -> [T, C] int64.

        history[:, k] is the compressed id of the token k places back, -1 where there is none or
        where it is an image; the first -1 turns itself and everything older into `pad`.
        """
        raise NotImplementedError

    @primitive(
        rows="rows",
        facts=lambda call: {
            "columns": call.rows.shape[1],
            "width": call.table.shape[1],
            "table_rows": call.table.shape[0],
            "weight": stored_kind(call.table),
            "dtype": call.dtype,
        },
    )
    def gather(self, table: PackedTable, rows: Tensor, dtype: torch.dtype) -> Activation:
        """Rows [T, C] of an Engram table, concatenated: -> Activation [T, C*W].

        A quantised table gives its stored codes and scales beside the values, so that an FP8
        matmul reads them as they are. A row outside the table raises IndexError.
        """
        raise NotImplementedError

    @primitive(rows="streams", facts=lambda call: streams_of(call.streams))
    def inject(
        self,
        streams: Tensor,
        memory: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        blocked: Tensor,
    ) -> Tensor:
        """Add the gated memory to every stream (model specification, 8.7).

        streams [T, S, H]; memory [T, (S+1)*H]: S stream keys, then the value; blocked [T] bool:
        rows whose gate is 0 (image spans and padding). fp32 inside, one rounding.
        """
        raise NotImplementedError

    @step(
        rows="streams",
        facts=lambda call: {
            **streams_of(call.streams),
            "columns": len(call.weights.hash.primes),
            "table_width": call.weights.table.shape[1],
        },
    )
    def engram(
        self, streams: Tensor, history: Tensor, weights: EngramWeights, blocked: Tensor
    ) -> Tensor:
        """Look up, project and inject: streams [T, S, H] -> streams."""
        rows = self.ngram_rows(history, weights.hash)
        entries = self.gather(weights.table, rows, streams.dtype)
        memory = self.linear(entries, weights.wkv, streams.dtype)
        return self.inject(
            streams, memory, weights.q_weight, weights.k_weight, weights.eps, blocked
        )
