"""Model rules between several keys, which the mathematics of the model needs.

A broken rule is a `ConfigError`. Rules on a single key stand where the key is read (`text.py`,
`model.py`). Limits of one vendor's kernels are no rules: see `limits.py`. Source: model
specification, section 1.2 and appendix C.
"""

from __future__ import annotations

from typing import Final

from deepinfer.config.engram import engram_primes
from deepinfer.config.fields import Section
from deepinfer.config.schedule import nearest
from deepinfer.config.text import TextConfig

SCALE_BLOCK: Final = 32  # values that share a scale in FP8 and MXFP4 (sections 2.3, 5.2, 5.4)


def check_text(text: TextConfig, section: Section, quantized: bool) -> None:
    """Check all rules.

    section: the section that `text` was read from, for the names in errors. quantized: matrices are
    stored in FP8 and FP4 blocks.
    """
    _check_widths(text, section)
    _check_scale_blocks(text, section, quantized)
    _check_schedule(text, section)
    _check_candidates(text, section)
    _check_experts(text, section)
    if text.engram_layer_ids:
        _check_engram(text, section)
    if text.num_nextn_predict_layers:
        _check_draft(text, section)


def _check_widths(text: TextConfig, s: Section) -> None:
    if text.num_attention_heads % text.o_groups:
        raise s.error(
            "num_attention_heads",
            text.num_attention_heads,
            f"a multiple of o_groups ({text.o_groups})",
        )
    narrowest = min(text.head_dim, text.index_head_dim)
    if text.qk_rope_head_dim % 2 or text.qk_rope_head_dim > narrowest:
        raise s.error(
            "qk_rope_head_dim",
            text.qk_rope_head_dim,
            f"even and at most head_dim ({text.head_dim}) and index_head_dim "
            f"({text.index_head_dim})",
        )


def _check_scale_blocks(text: TextConfig, s: Section, quantized: bool) -> None:
    """Widths that are quantised in blocks must be multiples of the block.

    Cache entries always are; the inputs of matrices only where the matrices are.
    """
    keys = ["head_dim", "index_head_dim", "moe_intermediate_size"]
    if quantized:
        keys += ["hidden_size", "q_lora_rank", "o_lora_rank"]
        keys += ["engram_head_dim"] if text.engram_layer_ids else []
    for key in keys:
        if getattr(text, key) % SCALE_BLOCK:
            raise s.error(
                key, getattr(text, key), f"a multiple of {SCALE_BLOCK}, the width of a scale block"
            )


def _check_schedule(text: TextConfig, s: Section) -> None:
    layers, drafts = text.num_hidden_layers, text.num_nextn_predict_layers
    if len(text.compress_ratios) != layers + drafts:
        raise s.error(
            "compress_ratios",
            list(text.compress_ratios),
            f"a list of num_hidden_layers + num_nextn_predict_layers = {layers} + {drafts} "
            f"entries, and has {len(text.compress_ratios)}",
        )
    for i, ratio in enumerate(text.compress_ratios[layers:], start=layers):
        if ratio != 0:
            raise s.error(
                f"compress_ratios[{i}]", ratio, "0: draft layers have a sliding window only"
            )
    for key in ("kv_source_layer_ids", "index_source_layer_ids"):
        for layer in getattr(text, key):
            if text.compress_ratios[layer] == 0:
                raise s.error(
                    key,
                    list(getattr(text, key)),
                    f"a list of layers of ratio 1 or 2; layer {layer} has compress_ratios 0",
                )
    for layer in text.kv_source_layer_ids:
        if layer not in text.index_source_layer_ids:
            raise s.error(
                "kv_source_layer_ids",
                list(text.kv_source_layer_ids),
                f"a subset of index_source_layer_ids {list(text.index_source_layer_ids)}; "
                f"layer {layer} is not in it",
            )
    for i, ratio in enumerate(text.compress_ratios[:layers]):
        if ratio == 0:
            continue
        source = nearest(text.kv_source_layer_ids, i)
        if source is None:
            found = "there is none"
        elif text.compress_ratios[source] != ratio:
            found = f"the nearest, layer {source}, has ratio {text.compress_ratios[source]}"
        else:
            continue
        raise s.error(
            f"compress_ratios[{i}]",
            ratio,
            f"the ratio of the nearest kv_source_layer_ids entry at or before layer {i}; {found}",
        )


def _check_candidates(text: TextConfig, s: Section) -> None:
    source = text.candidate_source_layer_id
    if source is None:
        return
    key = "candidate_source_layer_id"
    if source not in text.kv_source_layer_ids:
        raise s.error(
            key,
            source,
            f"one of kv_source_layer_ids {list(text.kv_source_layer_ids)}, or -1 or null for none",
        )
    for layer in text.index_source_layer_ids:
        if layer > source and text.compress_ratios[layer] != text.compress_ratios[source]:
            raise s.error(
                key,
                source,
                f"a layer of the same ratio as every index source after it; layer {layer} has "
                f"ratio {text.compress_ratios[layer]}, layer {source} has "
                f"{text.compress_ratios[source]}",
            )
    entries = text.candidate_topk_blocks * text.candidate_block_size
    if entries < text.index_topk:
        raise s.error(
            "candidate_topk_blocks",
            text.candidate_topk_blocks,
            f"such that candidate_topk_blocks * candidate_block_size ({entries}) is at least "
            f"index_topk ({text.index_topk})",
        )


def _check_experts(text: TextConfig, s: Section) -> None:
    pairs = [("num_experts_per_tok", "n_routed_experts")]
    if text.num_nextn_predict_layers:
        pairs.append(("dspark_num_experts_per_tok", "dspark_n_routed_experts"))
    for chosen, total in pairs:
        if getattr(text, chosen) > getattr(text, total):
            raise s.error(
                chosen, getattr(text, chosen), f"at most {total} ({getattr(text, total)})"
            )


def _check_engram(text: TextConfig, s: Section) -> None:
    """Check that the table rows equal the sums of the moduli (section 8.3)."""
    declared = text.engram_num_embeddings
    if len(declared) != len(text.engram_layer_ids):
        raise s.error(
            "engram_num_embeddings",
            list(declared),
            f"a list with one entry per engram_layer_ids {list(text.engram_layer_ids)}",
        )
    sums = dict.fromkeys(text.engram_layer_ids, 0)
    limits = dict(zip(text.engram_layer_ids, declared, strict=True))
    for layer, prime in engram_primes(text):
        sums[layer] += prime
        if sums[layer] > limits[layer]:
            break  # wrong already: do not search primes for absurd sizes
    for layer, rows in limits.items():
        if sums[layer] != rows:
            at_least = "at least " if sums[layer] > rows else ""
            raise s.error(
                "engram_num_embeddings",
                list(declared),
                f"the sum of each layer's {text.engram_columns} primes above engram_vocab_size; "
                f"for layer {layer} that is {at_least}{sums[layer]}, not {rows}",
            )


def _check_draft(text: TextConfig, s: Section) -> None:
    if not text.dspark_target_layer_ids:
        raise s.error(
            "dspark_target_layer_ids",
            [],
            "a list of at least one layer while num_nextn_predict_layers is not 0",
        )
