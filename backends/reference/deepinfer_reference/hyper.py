"""Hyper-connection family of the reference: mix, collapse and expand."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import HyperConnections, Mix, MixSite, accumulation_dtype
from deepinfer_reference.products import column_blocks, tile_product
from deepinfer_reference.tiling import align_last, row_sum, row_tiles, row_tiles_of, sigmoid


class ReferenceHyperConnections(HyperConnections):
    """Operators on the residual streams [T, S, H]."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        """Projection, then RMS, then the affine map; `base + m * scale` is rounded twice."""
        count = streams.shape[1]
        wide = accumulation_dtype(streams.dtype)
        projection = column_blocks(site.fn.to(wide))
        base = site.base.to(wide)
        sizes = [count, count, count * count]
        scale = torch.cat([site.scale[i : i + 1].expand(n) for i, n in enumerate(sizes)]).to(wide)

        def tile(streams: Tensor) -> tuple[Tensor, ...]:
            flat = streams.to(wide).flatten(1)
            mean = row_sum(flat * flat) / flat.shape[-1]
            mixed = tile_product(align_last(flat), projection).flatten(1)[:, : sum(sizes)]
            mixed = mixed * (1 / torch.sqrt(mean + site.norm_eps))
            pre, post, comb = torch.split(base + mixed * scale, sizes, -1)
            comb = sinkhorn(comb.reshape(-1, count, count), site.iterations, site.eps)
            return sigmoid(pre) + site.eps, 2 * sigmoid(post), comb

        return Mix(*row_tiles_of(tile, streams))

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        """pre[0] * stream 0 + pre[1] * stream 1 + ..., in this order."""
        wide = accumulation_dtype(streams.dtype)

        def tile(streams: Tensor, pre: Tensor) -> Tensor:
            terms = (streams.to(wide) * pre.unsqueeze(-1)).unbind(1)
            return _ordered_sum(terms).to(streams.dtype)

        return row_tiles(tile, streams, pre)

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        """The streams' terms in ascending order, then the sub-layer's."""
        wide = accumulation_dtype(streams.dtype)

        def tile(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
            values = streams.to(wide)
            terms = [
                comb[:, m].unsqueeze(-1) * values[:, m].unsqueeze(1)  # [16, S, H]
                for m in range(values.shape[1])
            ]
            written = post.unsqueeze(-1) * out.to(wide).unsqueeze(1)
            return (_ordered_sum(terms) + written).to(streams.dtype)

        return row_tiles(tile, out, streams, mix.post, mix.comb)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Nearly doubly stochastic matrices [M, S, S]: rows are source streams (3.3).

    A softmax of each row, then columns and rows are normalised in turn; columns come last.
    """
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    comb = weights / weights.sum(-1, keepdim=True) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


def _ordered_sum(terms: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
