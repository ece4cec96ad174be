"""The lightning indexer: selection of compressed entries, and the loss that trains it.

No gradient passes the selection, so the indexer has a loss of its own: its scores, as a
distribution over the visible entries, are to be the attention mass that the layers which use its
selection give to those entries (all heads together). The inputs of the indexer are detached: this
loss moves the indexer's own parameters only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepinfer.formats import Scheme
from examples.nano.rounding import cached

NEGATIVE = -1e30


@dataclass
class Aligned:
    """Scores [B, R, E] of an index source's rows (NEGATIVE where invisible), and the mass."""

    layer: int
    scores: Tensor
    mass: Tensor | None = None


def select(
    module: Any, network: Any, layer: int, a: Tensor, latent_query: Tensor, state: Any, todo: Any
) -> Any:
    """The state with this index source's keys, candidates and selection."""
    from examples.nano.network import norm, rotate

    length = a.shape[1]
    if module.owns_keys:
        keys = norm(F.linear(state.latent.detach(), module.wk.weight), module.k_norm)
        keys = cached(rotate(keys, network.rotation(layer, length, state.ratio)), Scheme.MXFP4)
        state = replace(state, keys=keys)
    rotation = network.rotation(layer, length)

    def scores(rows: Tensor | slice) -> Tensor:
        latent, hidden = latent_query.detach()[:, rows], a.detach()[:, rows]
        query = F.linear(latent, module.wq_b.weight)
        query = query.unflatten(-1, (module.num_heads, module.head_dim))
        query = cached(rotate(query, type(rotation)(*(x[rows] for x in rotation))), Scheme.MXFP4)
        weights = F.linear(hidden, module.weights_proj.weight)
        weights = weights * (module.head_dim * module.num_heads) ** -0.5
        dots = torch.bmm(query.flatten(1, 2), state.keys.mT).relu()
        dots = dots.view(-1, module.num_heads, state.keys.shape[1])
        summed = torch.bmm(weights.reshape(-1, 1, module.num_heads), dots)
        return summed.view(a.shape[0], -1, state.keys.shape[1]) + state.bias[:, rows]

    if todo.align is not None:
        todo.aligned.append(Aligned(layer, scores(todo.align)))
    if todo.sparse and state.keys.shape[1] > module.topk:
        with torch.no_grad():
            state = _selected(module, scores(slice(None)), state)
    elif todo.sparse:
        state = replace(state, selected=None)
    return state


def _selected(module: Any, scores: Tensor, state: Any) -> Any:
    """Top-k of the scores, among the candidates where there are any."""
    candidates = state.candidates
    if module.is_candidate_source:
        candidates = candidate_blocks(
            scores, module.candidate_topk_blocks, module.candidate_block_size, state.ratio
        )
    elif module.uses_candidates and candidates is not None:
        scores = scores.masked_fill(~candidates, NEGATIVE)
    best = scores.topk(module.topk, -1).indices
    selected = torch.full_like(scores, NEGATIVE).scatter_(-1, best, 0.0)
    return replace(state, candidates=candidates, selected=torch.minimum(selected, state.bias))


def candidate_blocks(scores: Tensor, kept: int, block: int, ratio: int) -> Tensor:
    """Entries of the blocks with the best entry, and of the last visible block: bool [B, T, E]."""
    _batch, length, width = scores.shape
    padded = F.pad(scores, (0, -width % block), value=NEGATIVE).unflatten(-1, (-1, block)).amax(-1)
    visible = (torch.arange(length) + 1) // ratio
    last = torch.arange(padded.shape[-1]) == ((visible - 1) // block).unsqueeze(1)
    padded = padded.masked_fill(last, torch.inf)
    best = padded.topk(min(kept, padded.shape[-1]), -1)
    keep = torch.zeros_like(padded, dtype=torch.bool)
    keep.scatter_(-1, best.indices, best.values > NEGATIVE)
    return keep.repeat_interleave(block, -1)[..., :width]


def gather_mass(aligned: list[Aligned], mass: list[Tensor | None], text: dict[str, Any]) -> None:
    """Give every index source the mass of the layers that its selection serves.

    Its own and the following ones up to the next index source; the candidate source serves all
    later layers.
    """
    sources = text["index_source_layer_ids"]
    for item in aligned:
        later = [source for source in sources if source > item.layer]
        end = later[0] if later else len(mass)
        if item.layer == text["candidate_source_layer_id"]:
            end = len(mass)
        parts = [part for part in mass[item.layer : end] if part is not None]
        item.mass = torch.stack(parts).sum(0)


def alignment_loss(aligned: list[Aligned]) -> Tensor:
    """Mean over sources of KL(mass || softmax(scores)), rows weighted by their mass."""
    total = torch.zeros(())
    for item in aligned:
        assert item.mass is not None
        weight = item.mass.sum(-1)
        target = item.mass / weight.clamp_min(1e-6).unsqueeze(-1)
        log_scores = torch.log_softmax(item.scores, -1)
        entropy = torch.xlogy(target, target).sum(-1)
        divergence = entropy - (target * log_scores.clamp_min(-100)).sum(-1)
        total = total + (divergence * weight).sum() / weight.sum().clamp_min(1e-6)
    return total / max(1, len(aligned))


def coverage(aligned: list[Aligned], kept: int) -> list[float]:
    """Share of the mass that the kept best-scored entries of each source hold."""
    shares = []
    for item in aligned:
        assert item.mass is not None
        best = item.scores.topk(min(kept, item.scores.shape[-1]), -1).indices
        shares.append(float(item.mass.gather(-1, best).sum() / item.mass.sum().clamp_min(1e-6)))
    return shares
