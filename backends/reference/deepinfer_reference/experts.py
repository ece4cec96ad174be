"""Experts family of the reference: routing, and the experts' MLPs in tiles of 16 rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    Experts,
    ExpertSource,
    Group,
    Numerics,
    PackedExperts,
    Routed,
    Routing,
    accumulation_dtype,
)
from deepinfer.errors import NotBuiltYetError
from deepinfer.formats import Scheme, quantise
from deepinfer_reference.packed import Expert, ReferenceExperts
from deepinfer_reference.products import operand, product
from deepinfer_reference.tiling import ROWS, row_tiles, row_tiles_of, silu, softplus


class ReferenceExpertOperators(Experts):
    """Operators of the mixture of experts."""

    device: torch.device

    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        """The mapped bytes as they are."""
        return ReferenceExperts(sources, self.device)

    def route(
        self,
        logits: Tensor,
        bias: Tensor,
        image_bias: Tensor,
        image_mask: Tensor,
        k: int,
        scale: float,
    ) -> Routing:
        """A stable descending sort puts the lower expert first among equal scores."""

        def tile(logits: Tensor, image_mask: Tensor) -> tuple[Tensor, ...]:
            scores = torch.sqrt(softplus(logits))
            chosen = scores + torch.where(image_mask.unsqueeze(-1), image_bias, bias)
            chosen = chosen.masked_fill(chosen.isnan(), float("-inf"))
            ids = chosen.sort(dim=-1, descending=True, stable=True).indices[:, :k]
            weights = scores.gather(1, ids)
            return ids.to(torch.int32), weights / weights.sum(-1, keepdim=True) * scale

        return Routing(*row_tiles_of(tile, logits, image_mask))

    def dispatch(self, a: Activation, routing: Routing, group: Group) -> Routed:
        """One process holds every expert: nothing moves."""
        if group.size != 1:
            raise NotBuiltYetError(
                f"dispatch to a group of {group.size} processes: expert parallelism is not built "
                "yet; run one process"
            )
        return Routed(a, routing, group)

    def swiglu(
        self, gate: Tensor, up: Tensor, limit: float, weights: Tensor | None, numerics: Numerics
    ) -> Activation:
        """Clamp, gate, weigh; then round or quantise."""
        dtype = gate.dtype
        wide = accumulation_dtype(dtype)

        def tile(gate: Tensor, up: Tensor, weights: Tensor | None = None) -> Tensor:
            gate, up = gate.to(wide), up.to(wide)
            if limit:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            hidden = silu(gate) * up
            return hidden if weights is None else hidden * weights.to(wide).unsqueeze(-1)

        rows = (gate, up) if weights is None else (gate, up, weights)
        hidden = row_tiles(tile, *rows)
        if numerics is Numerics.REF:
            return Activation(hidden.to(dtype))
        scheme = Scheme.FP8_BLOCK32
        return Activation(hidden.to(dtype), quantise(hidden, scheme), scheme)

    def expert_mlp(
        self, routed: Routed, experts: PackedExperts, limit: float, numerics: Numerics
    ) -> Routed:
        """Sort (row, choice) pairs by expert and run each expert on tiles of 16 of its pairs."""
        assert isinstance(experts, ReferenceExperts)
        a, routing = routed.activation, routed.routing
        rows, k = routing.ids.shape
        work = _plan(routing.ids, experts.num_slots)
        inputs = operand(a, experts.experts[0].w1)
        pairs = rows * k
        outputs = inputs.new_zeros((pairs + 1, experts.hidden), dtype=a.dtype)
        weights = torch.cat((routing.weights.flatten(), routing.weights.new_zeros(1)))
        for expert, pair in _runs(work, experts):
            source = torch.div(pair, k, rounding_mode="floor").clamp(max=max(rows - 1, 0))
            x = inputs.index_select(0, source)
            gate = product(x, expert.w1, a.dtype)
            up = product(x, expert.w3, a.dtype)
            hidden = self.swiglu(gate, up, limit, weights.index_select(0, pair), numerics)
            outputs.index_copy_(0, pair, product(operand(hidden, expert.w2), expert.w2, a.dtype))
        routed.outputs = outputs[:pairs].view(rows, k, experts.hidden)
        return routed

    def combine(self, routed: Routed, shared: Tensor, numerics: Numerics) -> Tensor:
        """Experts in ascending order, then the shared one."""
        assert routed.outputs is not None
        dtype = shared.dtype
        wide = accumulation_dtype(dtype)

        def tile(outputs: Tensor, ids: Tensor, shared: Tensor) -> Tensor:
            order = ids.sort(dim=-1, stable=True).indices
            terms = outputs.gather(1, order.unsqueeze(-1).expand_as(outputs)).unbind(1)
            total = terms[0].to(wide)
            for term in terms[1:]:
                total = total + term
            if numerics is Numerics.REF:
                total = total.to(dtype)
            return (total + shared).to(dtype)

        return row_tiles(tile, routed.outputs, routed.routing.ids, shared)


class _Work(NamedTuple):
    """Tiles of 16 pairs that share an expert.

    experts [tiles] int64, -1 for a tile without pairs. pairs [tiles, 16] int64, numbers of (row,
    choice) pairs; an empty place holds the number of pairs, one past the last.
    """

    experts: Tensor
    pairs: Tensor


def _plan(ids: Tensor, num_experts: int) -> _Work:
    """Sort the pairs of ids [T, k] by expert, each expert's pairs filled up to whole tiles.

    The number of tiles is the most that any routing can need, so no shape depends on data.
    """
    flat = ids.flatten().long()
    pairs = flat.shape[0]
    tiles = min(pairs, pairs // ROWS + min(num_experts, pairs))
    by_expert = flat.sort(stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    tile_end = torch.div(counts + ROWS - 1, ROWS, rounding_mode="floor").cumsum(0)
    pair_end = counts.cumsum(0)
    first_tile = tile_end - torch.div(counts + ROWS - 1, ROWS, rounding_mode="floor")
    rank = torch.arange(pairs, device=flat.device) - (pair_end - counts)[by_expert.values]
    place = first_tile[by_expert.values] * ROWS + rank
    slots = torch.full((tiles * ROWS,), pairs, dtype=torch.int64, device=flat.device)
    slots.index_copy_(0, place, by_expert.indices)
    number = torch.arange(tiles, device=flat.device)
    expert = (tile_end <= number.unsqueeze(-1)).sum(-1)
    return _Work(torch.where(expert < num_experts, expert, -1), slots.view(tiles, ROWS))


def _runs(work: _Work, experts: ReferenceExperts) -> Iterator[tuple[Expert, Tensor]]:
    """Each expert with its pairs [n] int64, a multiple of 16.

    On the CPU the host reads the work list, so that an expert's tiles share one decoding and
    empty tiles cost nothing. On another device every tile is run, its expert chosen by the device;
    an empty tile multiplies some expert by rows that nobody reads.
    """
    if experts.stacks is not None:
        for index in range(work.experts.shape[0]):
            expert = work.experts[index : index + 1].clamp(min=0)
            yield experts.select(expert), work.pairs[index]
        return
    numbers = work.experts.tolist()
    start = 0
    while start < len(numbers) and numbers[start] >= 0:
        stop = start
        while stop < len(numbers) and numbers[stop] == numbers[start]:
            stop += 1
        yield experts.experts[numbers[start]], work.pairs[start:stop].flatten()
        start = stop
