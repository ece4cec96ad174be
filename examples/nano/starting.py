"""Starting values from which a small model learns to recall in minutes.

Gradient descent finds the two steps of recall (say what followed the last time) late and at once;
with few tokens it may not find them at all. So the matrices begin near a rough solution, which
training then refines. The channels of the residual streams begin with these uses:

* ONE: a constant, so that attention to a fixed distance has something to read;
* TOKEN: a random code of the token;
* CONTEXT: codes of the last four tokens, written by layer 0 (head h attends h positions back);
* BEFORE: CONTEXT of the position before, written by layer 1;
* SAID: what the head turns into a prediction. Layers 3 and up look for a position whose BEFORE is
  like their own CONTEXT and write its TOKEN there.

Everything else begins random and small.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

ONE = 0
TOKEN = slice(1, 41)
CONTEXT = slice(41, 69)
BEFORE = slice(69, 97)
SAID = slice(97, 121)
CODE = 28  # channels of CONTEXT and BEFORE
MATCHED = 24  # channels of a key that are compared; as many carry the token
INDEXED = 16  # channels of an index key that are not rotated
DISTANCE_LOGITS = (9.0, 4.0, 4.0, 3.0)  # per rotary pair, from the fastest on
HEAD_SHARES = (1.0, 0.8, 0.6, 0.5)  # of the tokens 0 to 3 back in CONTEXT


@torch.no_grad()
def set_starting_values(target: Any, draft: Any) -> None:
    """Set every parameter of NeMo's freshly built modules."""
    model = target.model
    for module in (*model.layers.values(), *draft.mtp):
        _random(module)
    embedding = model.embed_tokens.weight
    embedding.normal_(std=0.02)
    embedding[:, ONE] = 1.0
    embedding[:, TOKEN] = torch.randn(embedding.shape[0], TOKEN.stop - TOKEN.start)
    said = _projection(MATCHED, TOKEN.stop - TOKEN.start)
    target.lm_head.weight.normal_(std=0.01)
    target.lm_head.weight[:, SAID] = embedding[:, TOKEN] @ said.T * 0.3
    layers = list(model.layers.values())
    _context(layers[0].attn)
    _before(layers[1].attn)
    match, index = _projection(MATCHED, CODE), _projection(INDEXED, MATCHED)
    for number, layer in enumerate(layers):
        if number >= 3:
            _recall(layer.attn, match, said)
        if layer.attn.compressor is not None:
            layer.attn.compressor.wkv.weight.copy_(_recall_keys(layer.attn, match, said))
            if layer.attn.compress_ratio > 1:
                layer.attn.compressor.wgate.weight.mul_(0.3)
        if layer.attn.indexer is not None:
            _index(layer.attn.indexer, match, index)
    draft.mtp[0].main_proj.weight.normal_(std=draft.mtp[0].main_proj.weight.shape[1] ** -0.5)


def _projection(rows: int, columns: int) -> Tensor:
    """Orthonormal rows."""
    return torch.linalg.qr(torch.randn(columns, rows)).Q.T.contiguous()


def _random(block: Any) -> None:
    """Small random matrices, streams that differ a little and mostly stay where they are."""
    for name, parameter in block.named_parameters():
        if name.endswith(("norm.weight", "q_weight", "k_weight", "sinks_param.weight")):
            continue
        fan_in = parameter.shape[1] if parameter.dim() > 1 else 1
        gain = 0.7
        if name.endswith(("wo_b.weight", "down_projs", "down_proj.weight")):
            gain = 0.15
        elif name.endswith("ffn.gate.weight"):
            gain = 0.3
        elif name.endswith("engram.embed.weight"):
            gain = 0.05 * fan_in**0.5
        parameter.normal_(std=gain * fan_in**-0.5)
    for site in (block.attn_hc, block.ffn_hc):
        streams = site.streams
        site.fn.normal_(std=0.2 * site.fn.shape[1] ** -0.5)
        site.scale.fill_(1)
        site.base.zero_()
        site.base[:streams] = torch.linspace(0.5, -1.0, streams)
        site.base[streams : 2 * streams] = torch.linspace(0.3, -0.3, streams)
        site.base[2 * streams :] = 2.5 * torch.eye(streams).flatten()
    if hasattr(block, "confidence_head"):
        nn.init.zeros_(block.confidence_head.proj.weight)


def _distance_query(attn: Any, distance: int) -> Tensor:
    """Rotated channels of a query that prefers keys `distance` back, for keys of ones."""
    pairs = attn.rotary_emb.dim // 2
    speeds = attn.rotary_emb(torch.tensor([[1]]))[0, 0]
    scale = attn.head_dim**0.5
    query = torch.zeros(pairs, 2)
    for i, logit in enumerate(DISTANCE_LOGITS[:pairs]):
        # a key (1, 0) turned by -distance relative to the query
        angle = -distance * float(speeds[i])
        query[i] = logit * scale * torch.tensor([math.cos(angle), math.sin(angle)])
    return query.flatten()


def _by_distance(attn: Any, distances: list[int]) -> None:
    """Head h attends `distances[h]` positions back; keys carry ONE in their rotated channels."""
    width, rotated = attn.head_dim, attn.rotary_emb.dim
    attn.wq_a.weight.mul_(0.2)
    attn.wq_a.weight[0].zero_()
    attn.wq_a.weight[0, ONE] = 4.0
    query = attn.wq_b.weight.view(attn.num_heads, width, -1)
    query.mul_(0.2)
    constant = attn.wq_a.weight.shape[0] ** 0.5  # of latent 0 after its norm
    keys = attn.wkv.weight
    keys.mul_(0.1)
    keys[-rotated:].zero_()
    keys[-rotated::2, ONE] = 1.0
    for head, distance in enumerate(distances):
        query[head, -rotated:, 0] = _distance_query(attn, distance) / constant


def _outputs(attn: Any, per_head: list[Tensor], channels: slice) -> None:
    """Write a matrix [c, channels of a head that are not rotated] times each head's output."""
    groups, width = attn.num_groups, attn.head_dim
    heads = attn.num_heads // groups
    first = attn.wo_a.weight.view(groups, -1, heads, width)
    first.mul_(0.2)
    last = attn.wo_b.weight.view(-1, groups, first.shape[1])
    for group in range(groups):
        for i in range(heads):
            matrix = per_head[group * heads + i]
            rows, columns = matrix.shape
            first[group, :rows, i, :columns] = matrix
        last[channels, group].zero_()
        count = channels.stop - channels.start
        last[channels, group, :count] = torch.eye(count)


def _context(attn: Any) -> None:
    _by_distance(attn, [0, 1, 2, 3])
    tokens = TOKEN.stop - TOKEN.start
    attn.wkv.weight[:tokens, TOKEN] = torch.eye(tokens)
    codes = [share * _projection(CODE, tokens) for share in HEAD_SHARES]
    _outputs(attn, codes, CONTEXT)


def _before(attn: Any) -> None:
    _by_distance(attn, [1, 1, 1, 1])
    attn.wkv.weight[:CODE, CONTEXT] = torch.eye(CODE)
    _outputs(attn, [0.25 * torch.eye(CODE)] * attn.num_heads, BEFORE)


def _recall_keys(attn: Any, match: Tensor, said: Tensor) -> Tensor:
    """Projection to keys: what is compared, then what is copied."""
    weight = 0.05 * torch.randn_like(attn.wkv.weight) * attn.wkv.weight.shape[1] ** -0.5
    weight[:MATCHED, BEFORE] = match
    weight[MATCHED : 2 * MATCHED, TOKEN] = said
    return weight


def _recall(attn: Any, match: Tensor, said: Tensor) -> None:
    attn.wkv.weight.copy_(_recall_keys(attn, match, said))
    attn.wq_a.weight.mul_(0.2)
    attn.wq_a.weight[:CODE] = 0
    attn.wq_a.weight[:CODE, CONTEXT] = torch.eye(CODE)
    query = attn.wq_b.weight.view(attn.num_heads, attn.head_dim, -1)
    query.mul_(0.2)
    for head in range(attn.num_heads):
        query[head, :MATCHED, :CODE] = (2.5 - 0.4 * head) * match
    copied = torch.zeros(MATCHED, 2 * MATCHED)
    copied[:, MATCHED:] = 0.3 * torch.eye(MATCHED)
    _outputs(attn, [copied] * attn.num_heads, SAID)


def _index(indexer: Any, match: Tensor, index: Tensor) -> None:
    """Index scores that compare what attention compares."""
    query = indexer.wq_b.weight.view(indexer.num_heads, indexer.head_dim, -1)
    query.mul_(0.3)
    query[:, :INDEXED, :CODE] += index @ match
    indexer.weights_proj.weight.mul_(0.1)
    indexer.weights_proj.weight[:, ONE] = 0.3
    if indexer.owns_keys:
        indexer.wk.weight.mul_(0.1)
        indexer.wk.weight[:INDEXED, :MATCHED] = index
