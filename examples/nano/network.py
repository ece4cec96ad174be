"""The forward pass used in training: NeMo's parameters, the same mathematics, fewer operations.

Sequences are whole documents from position 0, padded on the right to a multiple of the window. In
place of NeMo's loops: window attention in blocks, experts over gathered rows, streams as batched
matrix products. `tests/nano/test_network.py` compares it with NeMo's own forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from deepinfer.formats import Scheme
from examples.nano import hyper, indexer
from examples.nano.compilation import fused
from examples.nano.rounding import cached

NEGATIVE = -1e30


class Rotation(NamedTuple):
    """cos, sin: [positions, pairs]."""

    cos: Tensor
    sin: Tensor


def rotate(x: Tensor, rotation: Rotation, *, inverse: bool = False) -> Tensor:
    """Adjacent pairs of the last channels of x [B, T, ..., D] rotated by position."""
    pairs = rotation.cos.shape[-1]
    shape = (1, x.shape[1], *(1,) * (x.dim() - 3), pairs)
    cos, sin = rotation.cos.view(shape), rotation.sin.view(shape)
    if inverse:
        sin = -sin
    plain, rotated = x.split((x.shape[-1] - 2 * pairs, 2 * pairs), -1)
    first, second = rotated.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), -1)
    return torch.cat((plain, turned.flatten(-2)), -1)


def rotation_of(attention: Any, positions: Tensor) -> Rotation:
    """Angles by NeMo's own rule for this layer."""
    angles = attention.rotary_emb(positions.unsqueeze(0))[0]
    return Rotation(angles.cos(), angles.sin())


def norm(x: Tensor, module: Any) -> Tensor:
    """RMSNorm with a module's weight."""
    return F.rms_norm(x, x.shape[-1:], module.weight, module.eps)


@dataclass
class Compressed:
    """What a KV source publishes and an index source replaces.

    entries: [B, E, D]. latent: before rotation. ratio: tokens per entry. bias: [B, T, E], 0
    where a query sees an entry. keys: index keys [B, E, d]. candidates: bool [B, T, E].
    """

    entries: Tensor
    latent: Tensor
    ratio: int
    bias: Tensor
    keys: Tensor | None = None
    candidates: Tensor | None = None
    selected: Tensor | None = None


@dataclass
class Pass:
    """What one forward pass is asked for and what it leaves beside its result.

    segments: [B, T], documents of a row, 0 for padding; tokens see their own only. sparse: only
    selected entries are attended. align: rows [R] whose index scores are compared with attention;
    `aligned` then collects one `indexer.Aligned` per index source.
    """

    segments: Tensor
    sparse: bool = False
    align: Tensor | None = None
    aligned: list[indexer.Aligned] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)  # [N, H] at each draft target layer
    loads: list[Tensor] = field(default_factory=list)  # tokens per expert of each layer


def with_block_before(blocks: Tensor) -> Tensor:
    """Keys of each block of queries: [B, n, W, ...] to [B, n, 2 W, ...]; zeros before the first."""
    if blocks.shape[1] == 1:
        return blocks
    before = torch.cat((torch.zeros_like(blocks[:, :1]), blocks[:, :-1]), 1)
    return torch.cat((before, blocks), 2)


def window_bias(segments: Tensor, window: int) -> Tensor:
    """[B, n, W, w]: 0 where a query sees a key of its block or the one before."""
    blocks = segments.unflatten(1, (-1, window))
    keys = with_block_before(blocks)
    width = keys.shape[2]
    query = torch.arange(window).unsqueeze(1) + width - window
    key = torch.arange(width)
    seen = (key <= query) & (key > query - window)
    seen = seen & (blocks.unsqueeze(3) == keys.unsqueeze(2)) & (keys > 0).unsqueeze(2)
    return torch.where(seen, 0.0, NEGATIVE)


def entry_bias(segments: Tensor, ratio: int) -> Tensor:
    """[B, T, E]: 0 where a query sees a compressed entry."""
    length = segments.shape[1]
    owner = segments[:, ratio - 1 :: ratio]  # the last token of a group decides
    visible = (torch.arange(length) + 1) // ratio
    seen = torch.arange(owner.shape[1]) < visible.unsqueeze(1)
    seen = seen & (segments.unsqueeze(2) == owner.unsqueeze(1)) & (owner > 0).unsqueeze(1)
    return torch.where(seen, 0.0, NEGATIVE)


class Network:
    """The language model over the parameters of a `reference.Reference`."""

    def __init__(self, target: Any, config: dict[str, Any]) -> None:
        self.target, self.text = target, config["text_config"]
        self.layers = list(target.model.layers.values())
        self.window: int = self.text["sliding_window"]
        self._rotations: dict[tuple[int, int, int], Rotation] = {}

    def rotation(self, layer: int, length: int, stride: int = 1) -> Rotation:
        """Angles of positions 0, stride, ... of a sequence."""
        kind = int(self.text["compress_ratios"][layer] > 0)
        key = (kind, length, stride)
        if key not in self._rotations:
            positions = torch.arange(0, length // stride * stride, stride)
            self._rotations[key] = rotation_of(self.layers[layer].attn, positions)
        return self._rotations[key]

    def hidden(self, ids: Tensor, todo: Pass) -> Tensor:
        """Final normed states [B, T, H] of ids [B, T]; T is a multiple of the window."""
        batch, length = ids.shape
        model = self.target.model
        embedded = model.embed_tokens(ids).flatten(0, 1)
        streams = embedded.unsqueeze(1).expand(-1, self.text["hc_mult"], -1)
        pre = torch.zeros(embedded.shape[0], self.text["hc_mult"])
        pre[:, 0] = 1
        hashes = model.engram_hash(ids, sequence_ids=todo.segments)
        near = window_bias(todo.segments, self.window)
        state: Compressed | None = None
        mass: list[Tensor | None] = []
        for number, layer in enumerate(self.layers):
            if layer.engram is not None:
                streams = engram(layer.engram, streams, hashes[:, :, layer.engram.layer_hash_index])
            if number in self.text["dspark_target_layer_ids"]:
                todo.features.append(streams.detach().mean(1))
            mix = hyper.predict(layer.attn_hc, streams)
            a = hyper.collapse_norm(streams, pre, layer.attn_norm.weight, layer.attn_norm.eps)
            a = a.unflatten(0, (batch, length))
            attended, state, seen = self.attention(number, a, state, near, todo)
            mass.append(seen)
            streams = hyper.expand(attended.flatten(0, 1), streams, mix.post, mix.comb)
            ffn_mix = hyper.predict(layer.ffn_hc, streams)
            b = hyper.collapse_norm(streams, mix.pre, layer.ffn_norm.weight, layer.ffn_norm.eps)
            output, load = experts(layer.ffn, b)
            todo.loads.append(load)
            streams = hyper.expand(output, streams, ffn_mix.post, ffn_mix.comb)
            pre = ffn_mix.pre
        if todo.align is not None:
            indexer.gather_mass(todo.aligned, mass, self.text)
        final = hyper.collapse_norm(streams, pre, model.norm.weight, model.norm.eps)
        return final.unflatten(0, (batch, length))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., V] of states [..., H]."""
        return F.linear(hidden, self.target.lm_head.weight)

    def attention(
        self, number: int, a: Tensor, state: Compressed | None, near: Tensor, todo: Pass
    ) -> tuple[Tensor, Compressed | None, Tensor | None]:
        """Output [B, T, H], the compressed state for later layers, and attention mass per entry
        [B, R, E] of the rows to align."""
        attn = self.layers[number].attn
        _batch, length, _ = a.shape
        heads, width = attn.num_heads, attn.head_dim
        rotation = self.rotation(number, length)
        latent_query = norm(F.linear(a, attn.wq_a.weight), attn.q_norm)
        query = F.linear(latent_query, attn.wq_b.weight).unflatten(-1, (heads, width))
        query = scaled_query(query, rotation.cos, rotation.sin)
        keys = normed_keys(
            F.linear(a, attn.wkv.weight), attn.kv_norm.weight, rotation.cos, rotation.sin
        )
        keys = cached(keys, Scheme.FP8_BLOCK32)
        ratio = attn.compress_ratio
        if attn.compressor is not None:
            state = self._compress(attn.compressor, a, number, ratio, todo.segments)
        if ratio == 0:
            state_here = None
        else:
            assert state is not None
            if attn.indexer is not None:
                state = indexer.select(attn.indexer, self, number, a, latent_query, state, todo)
            state_here = state
        attended, mass = self._attend(query, keys, attn.attn_sink, state_here, near, todo)
        attended = turned_back(attended, rotation.cos, rotation.sin)
        groups = attended.flatten(2).unflatten(-1, (attn.num_groups, -1))  # [B, T, G, n]
        weight = attn.wo_a.weight.view(attn.num_groups, -1, groups.shape[-1])
        middle = torch.einsum("btgn,grn->btgr", groups, weight).flatten(2)
        return F.linear(middle, attn.wo_b.weight), state, mass

    def _compress(
        self, compressor: Any, a: Tensor, number: int, ratio: int, segments: Tensor
    ) -> Compressed:
        """Entries, and who sees them."""
        length = a.shape[1]
        values = F.linear(a, compressor.wkv.weight)
        if ratio > 1:
            scores = F.linear(a, compressor.wgate.weight).unflatten(1, (-1, ratio))
            values = (values.unflatten(1, (-1, ratio)) * scores.softmax(2)).sum(2)
        latent = norm(values, compressor.norm)
        entries = cached(rotate(latent, self.rotation(number, length, ratio)), Scheme.NVFP4)
        return Compressed(entries, latent, ratio, entry_bias(segments, ratio))

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        sink: Tensor,
        state: Compressed | None,
        bias: Tensor,
        todo: Pass,
    ) -> tuple[Tensor, Tensor | None]:
        """Softmax over window, compressed entries and the sink. query: [B, T, h, D], scaled."""
        batch, length, heads, width = query.shape
        window = self.window
        count = length // window
        near = with_block_before(keys.unflatten(1, (-1, window))).flatten(0, 1)  # [B n, w, D]
        logits = torch.bmm(query.reshape(batch * count, window * heads, width), near.mT)
        logits = logits.view(batch, count, window, heads, -1)
        if state is None:
            (inner,) = near_weights(logits, bias, sink)
        else:
            far = torch.bmm(query.reshape(batch, length * heads, width), state.entries.mT)
            allowed = state.bias
            if todo.sparse and state.selected is not None:
                allowed = state.selected
            inner, outer = all_weights(
                logits, bias, sink, far.view(batch, length, heads, -1), allowed
            )
        inner = inner.reshape(batch * count, window * heads, -1)
        attended = torch.bmm(inner, near).view(batch, length, heads, width)
        mass = None
        if state is not None:
            if todo.align is not None:
                mass = outer.detach()[:, todo.align].sum(2)
            outer = outer.reshape(batch, length * heads, -1)
            attended = torch.baddbmm(
                attended.reshape(batch, length * heads, width), outer, state.entries
            ).view_as(attended)
        return attended, mass


@fused
def scaled_query(query: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotated query, with the scale of the softmax in it."""
    return rotate(query, Rotation(cos, sin)) * query.shape[-1] ** -0.5


@fused
def normed_keys(keys: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotated RMSNorm of window keys [B, T, D]."""
    rstd = torch.rsqrt(keys.square().mean(-1, keepdim=True) + 1e-20)
    return rotate(keys * rstd * weight, Rotation(cos, sin))


@fused
def turned_back(attended: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Attention output under the inverse rotation."""
    return rotate(attended, Rotation(cos, sin), inverse=True)


@fused
def near_weights(logits: Tensor, bias: Tensor, sink: Tensor) -> tuple[Tensor]:
    """Attention weights [B, n, W, h, w] where there is only a window."""
    logits = logits + bias.unsqueeze(3)
    top = torch.maximum(logits.amax(-1, keepdim=True), sink.view(1, 1, 1, -1, 1)).detach()
    weights = torch.exp(logits - top)
    return (weights / (weights.sum(-1, keepdim=True) + torch.exp(sink.view(-1, 1) - top)),)


@fused
def all_weights(
    logits: Tensor, bias: Tensor, sink: Tensor, far: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention weights of window keys [B, n, W, h, w] and of compressed entries [B, T, h, E]."""
    near = (logits + bias.unsqueeze(3)).flatten(1, 2)
    far = far + allowed.unsqueeze(2)
    sink = sink.view(1, 1, -1, 1)
    top = torch.maximum(near.amax(-1, keepdim=True), far.amax(-1, keepdim=True))
    top = torch.maximum(top, sink).detach()
    near, far = torch.exp(near - top), torch.exp(far - top)
    total = near.sum(-1, keepdim=True) + far.sum(-1, keepdim=True) + torch.exp(sink - top)
    return (near / total).view_as(logits), far / total


def engram(module: Any, streams: Tensor, rows: Tensor) -> Tensor:
    """Streams [N, S, H] after the gated n-gram memory of table rows [B, T, columns] went in."""
    hidden, count = module.hidden_size, module.hc_mult
    found = F.embedding(rows.flatten(0, 1), module.embed.weight).flatten(1)
    key, value = F.linear(found, module.wkv.weight).split((count * hidden, hidden), -1)
    key = key.unflatten(-1, (count, hidden))
    rstd = torch.rsqrt(streams.square().mean(-1) + module.eps)
    rstd = rstd * torch.rsqrt(key.square().mean(-1) + module.eps)
    dot = (streams * (module.q_weight * module.k_weight) * key).sum(-1) * rstd * hidden**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
    return streams + gate.unsqueeze(-1) * value.unsqueeze(1)


def experts(moe: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Output [N, H] of x [N, H], and how many rows each routed expert got."""
    gate, routed = moe.gate, moe.experts
    limit, chosen = moe.shared_experts.swiglu_limit, gate.topk
    scores = F.softplus(F.linear(x, gate.weight)).sqrt()
    bias = gate.e_score_correction_bias
    indices = (scores.detach() + bias).topk(chosen, -1).indices
    weights = scores.gather(1, indices)
    weights = weights / weights.sum(-1, keepdim=True) * gate.route_scale
    order = indices.flatten().argsort(stable=True)
    load = torch.bincount(indices.flatten(), minlength=bias.shape[0])
    token = order // chosen
    rows, row_weights = x[token], weights.flatten()[order].unsqueeze(-1)
    sizes = load.tolist()
    inner = torch.cat(
        [
            torch.mm(piece, matrix)
            for piece, matrix in zip(rows.split(sizes), routed.gate_and_up_projs, strict=True)
        ]
    )
    inner = weighted_swiglu(inner, row_weights, limit)
    outputs = [
        torch.mm(piece, matrix)
        for piece, matrix in zip(inner.split(sizes), routed.down_projs, strict=True)
    ]
    shared = moe.shared_experts
    inner = torch.cat((F.linear(x, shared.gate_proj.weight), F.linear(x, shared.up_proj.weight)), 1)
    output = F.linear(swiglu(inner, limit), shared.down_proj.weight)
    return output.index_add(0, token, torch.cat(outputs)), load


@fused
def weighted_swiglu(inner: Tensor, weight: Tensor, limit: float) -> Tensor:
    """`swiglu` times the routing weight [N, 1]."""
    first, second = inner.chunk(2, -1)
    return F.silu(first.clamp(max=limit)) * second.clamp(-limit, limit) * weight


@fused
def swiglu(inner: Tensor, limit: float) -> Tensor:
    """silu(gate) * up of [N, 2 I], both clamped."""
    first, second = inner.chunk(2, -1)
    return F.silu(first.clamp(max=limit)) * second.clamp(-limit, limit)
