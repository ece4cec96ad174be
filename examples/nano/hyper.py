"""Residual streams (single-pass mHC) in few, large operations.

Equal to NeMo's modules up to summation order. Tokens are one flat axis N.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.nano.compilation import fused


class Mix(NamedTuple):
    """pre, post: [N, S]; comb: [S (from), S (to), N]."""

    pre: Tensor
    post: Tensor
    comb: Tensor


class _Sinkhorn(torch.autograd.Function):
    """Sinkhorn normalisation of [S, S, N]; tokens last, so that sums over S are plain additions."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, eps: float) -> Tensor:
        first = torch.softmax(logits, dim=1)
        value = first + eps
        values, totals = [], []
        for step in range(2 * iterations - 1):
            axis = step % 2  # columns are normalised first and last
            total = value.sum(axis, keepdim=True).add_(eps)
            value = value / total
            values.append(value)
            totals.append(total)
        # The result is among them: kept in another way than this it would keep itself alive.
        ctx.save_for_backward(first, *values, *totals)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        first, *saved = ctx.saved_tensors
        count = len(saved) // 2
        for step in range(count - 1, -1, -1):
            value, total = saved[step], saved[count + step]
            inner = (gradient * value).sum(step % 2, keepdim=True)
            gradient = (gradient - inner).div_(total)
        inner = (gradient * first).sum(1, keepdim=True)
        return (gradient - inner).mul_(first), None, None


def predict(site: Any, streams: Tensor) -> Mix:
    """The mix of a site (a NeMo hyper-connection) from streams [N, S, H]."""
    count = site.streams
    flat = streams.flatten(1)
    projected = F.linear(flat, site.fn)
    pre, post, comb = _logits(flat, projected, site.base, site.scale, count, site.norm_eps)
    comb = _Sinkhorn.apply(comb, site.iterations, site.eps)  # type: ignore[no-untyped-call]
    return Mix(pre + site.eps, post, comb)


@fused
def _logits(
    flat: Tensor, projected: Tensor, base: Tensor, scale: Tensor, count: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """pre and post [N, S], and what Sinkhorn starts from [S, S, N]."""
    rstd = torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    values = projected * rstd
    pre = torch.sigmoid(base[:count] + values[:, :count] * scale[0])
    post = 2 * torch.sigmoid(base[count : 2 * count] + values[:, count : 2 * count] * scale[1])
    comb = base[2 * count :] + values[:, 2 * count :] * scale[2]
    return pre, post, comb.t().reshape(count, count, -1)


@fused
def collapse_norm(streams: Tensor, pre: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm [N, H] of the sum of streams [N, S, H] weighted by pre [N, S]."""
    summed = sum(pre[:, i, None] * streams[:, i] for i in range(streams.shape[1]))
    rstd = torch.rsqrt(summed.square().mean(-1, keepdim=True) + eps)
    return summed * rstd * weight


@fused
def expand(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Streams [N, S, H] after a sublayer's output [N, H] went in. comb: [S, S, N]."""
    mixed = (comb.permute(2, 0, 1).unsqueeze(-1) * streams.unsqueeze(2)).sum(1)
    return post.unsqueeze(-1) * output.unsqueeze(1) + mixed
