"""Hyper-connections by their formulas, in float64. Source: model specification, section 3."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Mix, MixSite


def predicted(streams: Tensor, site: MixSite) -> Mix:
    """The mix that a site computes from streams [T, S, H]."""
    count = streams.shape[1]
    flat = streams.double().flatten(1)
    mixed = flat @ site.fn.double().T
    mixed = mixed * ((flat * flat).mean(1, keepdim=True) + site.norm_eps).rsqrt()
    base, scale = site.base.double(), site.scale.double()
    pre, post, comb = mixed[:, :count], mixed[:, count : 2 * count], mixed[:, 2 * count :]
    pre = torch.sigmoid(base[:count] + scale[0] * pre) + site.eps
    post = 2 * torch.sigmoid(base[count : 2 * count] + scale[1] * post)
    logits = (base[2 * count :] + scale[2] * comb).reshape(-1, count, count)
    wide = streams.dtype if streams.dtype == torch.float64 else torch.float32
    comb = balanced(logits, site.iterations, site.eps)
    return Mix(pre.to(wide), post.to(wide), comb.to(wide))


def balanced(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Sinkhorn: normalises rows, then columns, `iterations` times; the first time by softmax."""
    matrix = torch.softmax(logits, 2) + eps
    for turn in range(iterations):
        if turn:
            matrix = matrix / (matrix.sum(2, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
    return matrix


def collapsed(streams: Tensor, pre: Tensor) -> Tensor:
    """The sum of streams [T, S, H] weighted by pre [T, S]."""
    return torch.einsum("ts,tsh->th", pre.double(), streams.double()).to(streams.dtype)


def expanded(out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
    """The streams after the output [T, H] of a sub-layer is written into them."""
    kept = torch.einsum("tmn,tmh->tnh", mix.comb.double(), streams.double())
    written = torch.einsum("tn,th->tnh", mix.post.double(), out.double())
    return (kept + written).to(streams.dtype)
