"""The static facts of an operator's call that its arguments show, by the names of `CallSpec`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, PackedLinear, WindowSpan
from deepinfer.formats import Scheme

NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}

Facts = dict[str, Any]


def name_of(scheme: Scheme | None) -> str | None:
    return scheme.value if scheme is not None else None


def matmul(a: Activation, w: PackedLinear, out: torch.dtype) -> Facts:
    consumed = name_of(a.scheme) if w.kind in ("fp8", "fp4") else None
    return {"weight": w.kind, "scheme": consumed, "out": NAMES[out], "dtype": NAMES[a.dtype]}


def linear(a: Activation, w: PackedLinear, out: torch.dtype) -> Facts:
    return {"inputs": w.shape[1], "outputs": w.shape[0], **matmul(a, w, out)}


def grouped_linear(a: Activation, w: PackedLinear, out: torch.dtype) -> Facts:
    groups, inputs = a.values.shape[-2:]
    outputs = w.shape[0] // groups
    return {"groups": groups, "inputs": inputs, "outputs": outputs, **matmul(a, w, out)}


def width_of(x: Tensor) -> Facts:
    return {"width": x.shape[-1], "dtype": NAMES[x.dtype]}


def heads_of(x: Tensor) -> int:
    return x.shape[1] if x.dim() == 3 else 1


def attend(
    queries: Tensor, window: Any, span: WindowSpan, main: Any, selection: Any, *rest: Any
) -> Facts:
    return {
        "heads": queries.shape[1],
        "head_dim": queries.shape[2],
        "window": span.width,
        "selected": selection.indices.shape[1] if selection is not None else 0,
        "dtype": NAMES[queries.dtype],
    }


def streams(x: Tensor) -> Facts:
    return {"streams": x.shape[1], **width_of(x)}


SHOWN: dict[str, Callable[..., Facts]] = {
    "embed": lambda table, ids, dtype: {
        "vocabulary": table.shape[0],
        "width": table.shape[1],
        "dtype": NAMES[dtype],
    },
    "linear": linear,
    "grouped_linear": grouped_linear,
    "quantise": lambda x, to: {**width_of(x), "scheme": name_of(to)},
    "rms_norm": lambda x, weight, eps: {**width_of(x), "eps": eps},
    "norm_quantise": lambda x, weight, eps, to: {
        **width_of(x),
        "scheme": name_of(to),
    },
    "rope": lambda x, positions, frequencies, inverse, numerics: {
        **width_of(x),
        "heads": heads_of(x),
        "rotated": 2 * len(frequencies),
        "inverse": inverse,
        "numerics": numerics.value,
    },
    "expand": lambda out, x, mix: streams(x),
    "collapse": lambda x, pre: streams(x),
    "mix": lambda x, site: {**streams(x), "iterations": site.iterations},
    "enter": lambda x, pre, sub_layer, to: {
        **streams(x),
        "scheme": name_of(to),
    },
    "advance": lambda out, x, mix, sub_layer, to: {
        **streams(x),
        "scheme": name_of(to),
    },
    "ngram_rows": lambda history, hash: {
        "orders": history.shape[1],
        "columns": len(hash.primes),
    },
    "gather": lambda table, rows, dtype: {
        "columns": rows.shape[1],
        "width": table.shape[1],
        "table_rows": table.shape[0],
        "weight": table.kind,
        "dtype": NAMES[dtype],
    },
    "inject": lambda x, *rest: streams(x),
    "engram": lambda x, history, weights, blocked: {
        **streams(x),
        "columns": len(weights.hash.primes),
        "table_width": weights.table.shape[1],
    },
    "store": lambda values, region, *rest: {**width_of(values), "format": region.format.name},
    "norm_rope_store": lambda x, weight, eps, positions, frequencies, region, *rest: {
        **width_of(x),
        "format": region.format.name,
        "numerics": rest[-1].value,
    },
    "compress": lambda values, gates, state, batch, ratio, dtype: {
        "ratio": ratio,
        "width": values.shape[1],
        "dtype": NAMES[dtype],
    },
    "update_context": lambda a, weights, state, main, index, batch, numerics: {
        "ratio": weights.ratio,
        "head_dim": main.width,
        "index_dim": index.width,
        "hidden": a.values.shape[1],
        "numerics": numerics.value,
    },
    "index_scores": lambda queries, weights, *rest: {
        "heads": queries.values.shape[1],
        "width": queries.values.shape[2],
        "numerics": rest[-1].value,
    },
    "top": lambda scores, visible, k, candidates, size: {
        "top_k": k,
        "candidates": candidates is not None,
    },
    "best_blocks": lambda scores, visible, size, k: {"block": size, "blocks": k},
    "select": lambda latent, a, weights, keys, candidates, batch, numerics: {
        "heads": weights.num_heads,
        "width": weights.head_dim,
        "top_k": weights.top_k,
        "candidates": candidates is not None,
        "ratio": weights.ratio,
        "blocks": weights.candidate_blocks,
        "weight": weights.wq_b.kind,
        "numerics": numerics.value,
    },
    "attend": attend,
    "attend_output": lambda *arguments: {
        **attend(*arguments),
        "groups": arguments[8].groups,
        "rank": arguments[8].wo_a.shape[0] // arguments[8].groups,
        "hidden": arguments[8].wo_b.shape[0],
        "weight": arguments[8].wo_b.kind,
        "numerics": arguments[9].value,
    },
    "project": lambda a, weights, positions, numerics: {
        "heads": weights.num_heads,
        "head_dim": weights.head_dim,
        "rank": weights.wq_a.shape[0],
        "hidden": a.values.shape[1],
        "rotated": 2 * len(weights.frequencies),
        "weight": weights.wq_b.kind,
        "numerics": numerics.value,
    },
    "route": lambda logits, bias, image_bias, mask, k, scale: {
        "experts": logits.shape[1],
        "top_k": k,
        "scale": scale,
    },
    "dispatch": lambda a, routing, group: {
        "hidden": a.values.shape[1],
        "top_k": routing.ids.shape[1],
        "group": group.size,
    },
    "swiglu": lambda gate, up, limit, weights, numerics: {
        "intermediate": gate.shape[1],
        "limit": limit,
        "numerics": numerics.value,
    },
    "expert_mlp": lambda routed, experts, limit, numerics: {
        "experts": experts.num_slots,
        "top_k": routed.routing.ids.shape[1],
        "hidden": experts.hidden,
        "intermediate": experts.intermediate,
        "weight": experts.kind,
        "limit": limit,
        "numerics": numerics.value,
    },
    "combine": lambda routed, shared, numerics: {
        "hidden": shared.shape[1],
        "top_k": routed.routing.ids.shape[1],
        "numerics": numerics.value,
    },
    "shared_mlp": lambda a, weights, limit, numerics: {
        "hidden": a.values.shape[1],
        "intermediate": weights.w1.shape[0],
        "weight": weights.w1.kind,
        "limit": limit,
        "numerics": numerics.value,
    },
    "mixture": lambda a, router, experts, shared, mask, limit, group, numerics: {
        "experts": experts.num_slots,
        "top_k": router.top_k,
        "hidden": a.values.shape[1],
        "intermediate": experts.intermediate,
        "weight": experts.kind,
        "limit": limit,
        "numerics": numerics.value,
        "group": group.size,
    },
    "logits": lambda x, norm, eps, head: {"hidden": x.shape[1], "vocabulary": head.shape[0]},
    "process": lambda logits, parameters: {"vocabulary": logits.shape[1]},
    "top_logprobs": lambda logprobs, k: {"vocabulary": logprobs.shape[1]},
    "sample": lambda logprobs, *rest: {"vocabulary": logprobs.shape[1]},
}
"""Operator of the text model -> the facts that its arguments show."""
