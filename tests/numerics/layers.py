"""Every part of a layer, in the order of the model specification's Appendix A."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.backend import Batch, Numerics, Region
from tests.numerics import codes, plain
from tests.numerics.bounds import HALF_STEP, UNIT, summed
from tests.numerics.codes import Blocks
from tests.numerics.mixture import recompute_mixture
from tests.numerics.teacher import Teacher, same


def recompute(t: Teacher) -> dict[str, float]:
    """Check a whole layer: the worst share of each bound that was used."""
    start = t.record.residual
    streams, pre = start.streams, start.pre
    if start.out is not None and start.mix is not None:
        streams = t.expand("streams before", start.out, streams, start.mix.post, start.mix.comb)
        pre = start.mix.pre
    if t.plan.engram:
        streams = engram(t, streams)
    mix, a, blocks = t.enter("attn", streams, pre)
    out = attention(t, a, blocks)
    streams = t.expand("streams after attention", out, streams, mix.post, mix.comb)
    _, b, blocks = t.enter("ffn", streams, mix.pre)
    recompute_mixture(t, b, blocks)
    t.finish()
    return t.used


def engram(t: Teacher, streams: Tensor) -> Tensor:
    """Hash, rows as stored, projection, gate (section 8)."""
    constants = t.text.engram_hashes[t.plan.index]
    hashed = t.next("ngram_rows")
    pad = t.record.weights.engram.hash.pad if t.record.weights.engram else -1
    history = t.batch.history
    assert history is not None
    exact = [
        plain.ngram_rows(
            ids, list(constants.multipliers), list(constants.primes), pad, t.text.engram_n_heads
        )
        for ids in history.tolist()
    ]
    assert hashed.result.tolist() == exact, "Engram rows"
    gathered = t.next("gather").result
    values = t.stored.table("engram.embed", hashed.result)
    assert torch.equal(gathered.values.double(), values), "gathered Engram rows"
    stored = Blocks(*gathered.quantised) if gathered.quantised is not None else None
    if stored is not None:
        assert torch.equal(codes.fp8_values(*stored), values), "stored Engram rows"
    memory = t.matmul("engram.wkv", gathered.values, stored)
    call = t.next("inject")
    same("streams of Engram", call.arguments[0], streams)
    same("memory", call.arguments[1], memory)
    q, k = (t.stored.vector(f"engram.{name}_weight") for name in "qk")
    injected = plain.inject(streams.double(), memory.double(), q, k)
    bound = summed(injected.streams, t.dtype, 8) + injected.slack
    t.close("streams after Engram", call.result, injected.streams, bound)
    result: Tensor = call.result
    return result


def attention(t: Teacher, a: Tensor, blocks: Blocks | None) -> Tensor:
    """Projections, context, selection, attention, output (section 4)."""
    positions, heads = t.batch.positions, t.text.num_attention_heads
    latent = t.norm("query latent", t.matmul("attn.wq_a", a, blocks), "attn.q_norm.weight")
    latent_blocks = t.quantised("query latent", latent)
    queries = t.matmul("attn.wq_b", latent, latent_blocks).view(len(a), heads, -1)
    queries = t.rope("queries", queries, positions)
    window = t.norm("window", t.matmul("attn.wkv", a, blocks), "attn.kv_norm.weight")
    stored(t, "window", t.rope("window", window, positions), positions)
    selected = t.record.selected if t.plan.ratio else None
    if t.plan.role == "full":
        context(t, a)
    if t.plan.role in ("full", "reindex"):
        selected = select(t, latent, latent_blocks, a)
    result = attend(t, queries, selected)
    result = t.rope("attention output", result, positions, inverse=True)
    grouped = result.reshape(len(a), t.text.o_groups, -1)
    middle = t.matmul(
        "attn.wo_a", grouped, t.quantised("attention output", grouped), t.text.o_groups
    ).flatten(1)
    return t.matmul("attn.wo_b", middle, t.quantised("output middle", middle))


ENCODERS = {"window": codes.fp8, "main": codes.nvfp4, "index": codes.mxfp4}
DECODERS = {
    "window": codes.fp8_values,
    "main": codes.nvfp4_values,
    "index": codes.mxfp4_values,
}


def region_of(t: Teacher, kind: str) -> Region:
    """Where a layer's entries of a kind are."""
    if kind == "window":
        return t.record.pools.window_region(t.plan.index)
    assert t.plan.kv_source is not None
    pools = t.record.pools
    return pools.main(t.plan.kv_source) if kind == "main" else pools.index(t.plan.kv_source)


def entry_bytes(kind: str, region: Region, batch: Batch, sequence: int, entry: int) -> Blocks:
    """Codes and scales of one cached entry, found by the layout of section 5."""
    table = batch.window if kind == "window" else batch.context
    block = int(table.blocks[sequence, entry // region.entries - int(table.first[sequence])])
    place, width = entry % region.entries, region.width
    size = width if kind == "window" else width // 2
    scales = width // (16 if kind == "main" else 32)
    if kind == "index":  # all data of the block, then all scales
        data_at, scale_at = place * size, region.entries * size + place * scales
    else:
        data_at = place * (size + scales)
        scale_at = data_at + size
    data = region.pool.data[block, region.offset :]
    return Blocks(data[data_at : data_at + size], data[scale_at : scale_at + scales])


def cached(t: Teacher, kind: str, sequence: int, entries: list[int]) -> Tensor:
    """float64 values of cached entries [M, D]."""
    region = region_of(t, kind)
    found = [entry_bytes(kind, region, t.batch, sequence, entry) for entry in entries]
    if not found:
        return torch.zeros(0, region.width, dtype=torch.float64)
    return DECODERS[kind](
        torch.stack([one.codes for one in found]), torch.stack([one.scales for one in found])
    )


def stored(t: Teacher, kind: str, values: Tensor, entries: Tensor) -> None:
    """The bytes that a `store` left in the pool."""
    call = t.next("store")
    same(f"values stored as {kind}", call.arguments[0], values)
    same(f"entries stored as {kind}", call.arguments[2], entries)
    exact, region = ENCODERS[kind](values), region_of(t, kind)
    for row, entry in enumerate(entries.tolist()):
        if entry < 0:
            continue
        found = entry_bytes(kind, region, t.batch, int(t.batch.sequence[row]), entry)
        assert torch.equal(found.codes, exact.codes[row]), f"{kind} entry {entry}"
        assert torch.equal(found.scales, exact.scales[row]), f"{kind} scales of entry {entry}"


def context(t: Teacher, a: Tensor) -> None:
    """Compressor and index keys; never quantised inputs (4.4)."""
    ratio, positions = t.plan.ratio, t.batch.positions
    values = t.matmul("attn.compressor.wkv", a, None)
    call = t.next("compress")
    same("values to compress", call.arguments[0], values)
    complete = (positions + 1) % ratio == 0
    entries = torch.where(complete, positions // ratio, -1)
    same("compressed entries", call.result.entries, entries)
    if ratio == 1:
        same("latents", call.result.latents, values)
    else:
        gates = t.matmul("attn.compressor.wgate", a, None)
        assert values.dtype == gates.dtype == torch.float32
        members = torch.stack((values, gates), 1).double()
        pending = t.record.members
        assert pending is not None
        assert t.batch.num_sequences == 1
        assert ratio == 2
        before = pending[t.batch.slots[0], (positions[0] - 1) % pending.shape[1]].double()
        pairs = torch.stack((torch.cat((before.unsqueeze(0), members[:-1])), members), 1)
        exact = plain.merge(pairs[:, :, 0], pairs[:, :, 1])[complete]
        t.close("latents", call.result.latents[complete], exact, summed(exact, t.dtype, 8))
    latents = t.norm("latent norm", call.result.latents, "attn.compressor.norm.weight")
    first = entries.clamp(min=0) * ratio
    stored(t, "main", t.rope("main entries", latents, first), entries)
    keys = t.matmul("attn.indexer.wk", latents, None)
    keys = t.norm("index keys", keys, "attn.indexer.k_norm.weight")
    stored(t, "index", t.rope("index keys", keys, first), entries)


def select(t: Teacher, latent: Tensor, blocks: Blocks | None, a: Tensor) -> Tensor:
    """Scores of the visible entries and the best of them (4.5, 4.6)."""
    text, positions = t.text, t.batch.positions
    queries = t.matmul("attn.indexer.wq_b", latent, blocks).view(len(a), text.index_n_heads, -1)
    queries = t.rope("index queries", queries, positions)
    call = t.next("quantise")
    same("index queries", call.arguments[0], queries)
    exact = codes.mxfp4(queries)
    same("codes of index queries", call.result.quantised.codes, exact.codes)
    same("scales of index queries", call.result.quantised.scales, exact.scales)
    weights = t.matmul("attn.indexer.weights_proj", a, None)
    scored = t.next("index_scores")
    same("index head weights", scored.arguments[1], weights)
    visible = ((positions + 1) // t.plan.ratio).tolist()
    decoded, scores = codes.mxfp4_values(*exact), scored.result
    keys = cached(t, "index", 0, list(range(max(visible))))
    for row, count in enumerate(visible):
        score_row(t, decoded[row], keys[:count], weights[row].double(), scores[row, :count])
        assert (scores[row, count:] == float("-inf")).all(), "invisible entries are scored"
    chosen = t.next("top").result
    size, count = text.candidate_block_size, text.candidate_topk_blocks
    for row in range(len(a)):
        row_scores = scores[row, : visible[row]].tolist()
        if t.plan.uses_candidates:
            assert t.record.candidates is not None
            kept = set(t.record.candidates[row].tolist())
            allowed = [x if i // size in kept else -torch.inf for i, x in enumerate(row_scores)]
        else:
            allowed = row_scores
        best = plain.best(allowed, text.index_topk)
        assert chosen[row].tolist() == best + [-1] * (text.index_topk - len(best)), f"row {row}"
    if t.plan.candidate_source:
        candidates = t.next("best_blocks").result
        for row in range(len(a)):
            best = plain.best_blocks(scores[row, : visible[row]].tolist(), size, count)
            assert candidates[row].tolist() == best + [-1] * (count - len(best)), f"row {row}"
    result: Tensor = chosen
    return result


def score_row(t: Teacher, queries: Tensor, keys: Tensor, weights: Tensor, got: Tensor) -> None:
    """Index scores of one row: INFER in bf16 is exact, the others are float sums."""
    scale = (t.text.index_head_dim * t.text.index_n_heads) ** -0.5
    if t.dtype != torch.bfloat16:
        used = weights * scale if t.numerics is Numerics.REF else weights
        exact = plain.index_scores(queries, keys, used)
        size = plain.index_scores(queries, keys, used.abs())
        t.close("index scores", got, exact, 8 * len(weights) ** 0.5 * UNIT * size)
    elif t.numerics is Numerics.INFER:
        t.close("index scores", got, plain.lane_scores(queries, keys, weights), 0.0)
    else:
        exact = plain.rounded_scores(queries, keys, weights, scale)
        t.close("index scores", got, exact, HALF_STEP[t.dtype] * exact.abs() + 1e-6)


def attend(t: Teacher, queries: Tensor, selected: Tensor | None) -> Tensor:
    """Window and selected entries with the sink (4.7)."""
    call = t.next("attend")
    same("queries of attention", call.arguments[0], queries)
    sink = t.stored.vector("attn.attn_sink")
    scale = t.text.head_dim**-0.5
    results, bounds = [], []
    for row, position in enumerate(t.batch.positions.tolist()):
        sequence = int(t.batch.sequence[row])
        first = max(0, position - t.text.sliding_window + 1)
        keys = cached(t, "window", sequence, list(range(first, position + 1)))
        if selected is not None:
            chosen = [entry for entry in selected[row].tolist() if entry >= 0]
            keys = torch.cat((keys, cached(t, "main", sequence, chosen)))
        attended = plain.attend(queries[row].double(), keys, sink, scale)
        error = (4 * t.text.head_dim**0.5 * attended.logit_size + 4 * len(keys) ** 0.5 + 16) * UNIT
        results.append(attended.values)
        bounds.append(HALF_STEP[t.dtype] * attended.values.abs() + error * attended.weight)
    t.close("attention", call.result, torch.stack(results), torch.stack(bounds))
    result: Tensor = call.result
    return result
