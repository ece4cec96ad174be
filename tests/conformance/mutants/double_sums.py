"""A right backend whose sums have other last bits than the reference's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from deepinfer.backend import Activation, Batch, Compressed, Region
from deepinfer_reference.backend import ReferenceBackend


class DoubleSums(ReferenceBackend):
    """Sums in float64, rounded once; attention rounds its probabilities to bf16, as kernels do."""

    batch_invariant: ClassVar[frozenset[str]] = frozenset()

    def linear(self, a: Activation, w: Any, out_dtype: torch.dtype) -> Tensor:
        return super().linear(replace(a, values=a.values.double()), w, out_dtype)

    def grouped_linear(self, a: Activation, w: Any, out_dtype: torch.dtype) -> Tensor:
        return super().grouped_linear(replace(a, values=a.values.double()), w, out_dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return super().rms_norm(x.double(), weight, eps).to(x.dtype)

    def rope(self, x: Tensor, *rest: Any) -> Tensor:
        return super().rope(x.double(), *rest).to(x.dtype)

    def compress(self, *arguments: Any) -> Compressed:
        *before, dtype = arguments
        done = super().compress(*before, torch.float64)
        return Compressed(done.latents.to(dtype), done.entries)

    def index_scores(self, queries: Activation, weights: Tensor, *rest: Any) -> Tensor:
        if weights.dtype == torch.bfloat16:
            return super().index_scores(queries, weights, *rest)
        return super().index_scores(queries, weights.double(), *rest).to(weights.dtype)

    def attend(self, *arguments: Any) -> Tensor:
        queries, window, span, main, chosen, sink, scale, batch = arguments
        if queries.dtype != torch.bfloat16:
            return super().attend(queries.double(), *arguments[1:]).to(queries.dtype)
        entries = span.first[:, None] + torch.arange(span.width)
        entries = torch.where(entries <= span.last[:, None], entries, -1)
        keys = self._keys(window, entries, batch)
        if main is not None:
            indices = chosen.indices.long()
            keys = torch.cat((keys, self._keys(main, indices, batch)), 1)
            entries = torch.cat((entries, indices), 1)
        logits = torch.einsum("tad,tkd->tak", queries.float(), keys) * scale
        logits = logits.masked_fill((entries < 0)[:, None], float("-inf"))
        sinks = sink[None, :, None].expand(len(queries), -1, 1)
        largest = torch.cat((logits, sinks), -1).amax(-1, keepdim=True).clamp(min=-1e30)
        weights = torch.exp(logits - largest)
        total = weights.sum(-1, keepdim=True) + torch.exp(sinks - largest)
        sums = torch.einsum("tak,tkd->tad", weights.bfloat16().float(), keys)
        return (sums / total.masked_fill(total == 0, 1)).to(queries.dtype)

    def _keys(self, region: Region, entries: Tensor, batch: Batch) -> Tensor:
        sequence = batch.sequence[:, None].expand_as(entries)
        return self.load(region, sequence, entries, batch, torch.float32)
