"""The tensors that a configuration requires: name, component, kind and logical shape.

One entry per value: a quantised matrix is one entry, and its scales follow from it. Source: model
specification, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer.checkpoint.kinds import Component, ExpectedTensor, Kind, Part
from deepinfer.config.model import ModelConfig


def expected_tensors(config: ModelConfig, experts: int | None = None) -> Iterator[ExpectedTensor]:
    """Every value that a checkpoint of this configuration holds, of all components.

    experts: how many of a backbone layer's routed experts are listed, None for all; they have equal
    shapes.
    """
    text = config.text
    listed = text.n_routed_experts if experts is None else experts
    hidden, vocabulary = text.hidden_size, text.vocab_size
    for name, part in (("embed", Part.EMBEDDING), ("head", Part.HEAD)):
        yield ExpectedTensor(
            f"{name}.weight", Component.TEXT, Kind.BF16, (vocabulary, hidden), part, -1
        )
    yield ExpectedTensor("norm.weight", Component.TEXT, Kind.BF16, (hidden,), Part.OTHER_NORM, -1)
    for layer in range(text.num_hidden_layers):
        yield from _block(
            config, f"layers.{layer}", Component.TEXT, layer, text.n_routed_experts, listed
        )
        yield from _compressed(config, layer)
    for row, layer in enumerate(text.engram_layer_ids):
        yield from _engram(config, row, layer)
    for stage in range(text.num_nextn_predict_layers):
        drafted = text.dspark_n_routed_experts
        yield from _block(config, f"mtp.{stage}", Component.DRAFT, stage, drafted, drafted)
    if text.num_nextn_predict_layers:
        yield from _draft(config)
    if config.vision.num_hidden_layers:
        yield from _vision(config)


def _block(
    config: ModelConfig,
    prefix: str,
    component: Component,
    layer: int,
    experts: int,
    listed: int,
) -> Iterator[ExpectedTensor]:
    """One transformer block, of the backbone or of the draft module, with `listed` experts."""
    text = config.text
    hidden, head, streams = text.hidden_size, text.head_dim, text.hc_mult
    width = text.num_attention_heads * head
    intermediate = text.moe_intermediate_size
    rank = text.o_groups * text.o_lora_rank

    def tensor(name: str, kind: Kind, shape: tuple[int, ...], part: Part) -> ExpectedTensor:
        return ExpectedTensor(f"{prefix}.{name}", component, kind, shape, part, layer)

    yield tensor("attn_norm.weight", Kind.BF16, (hidden,), Part.NORM)
    yield tensor("ffn_norm.weight", Kind.BF16, (hidden,), Part.NORM)
    yield tensor("attn.q_norm.weight", Kind.BF16, (text.q_lora_rank,), Part.NORM)
    yield tensor("attn.kv_norm.weight", Kind.BF16, (head,), Part.NORM)
    yield tensor("attn.attn_sink", Kind.FP32, (text.num_attention_heads,), Part.NORM)
    for name, shape in (
        ("wq_a", (text.q_lora_rank, hidden)),
        ("wq_b", (width, text.q_lora_rank)),
        ("wkv", (head, hidden)),
        ("wo_a", (rank, width // text.o_groups)),
        ("wo_b", (hidden, rank)),
    ):
        yield tensor(f"attn.{name}.weight", Kind.FP8, shape, Part.ATTENTION)
    mixes = streams * (2 + streams)
    for site in ("attn", "ffn"):
        for name, mix_shape in (("fn", (mixes, streams * hidden)), ("base", (mixes,))):
            yield tensor(f"hc_{site}_{name}", Kind.FP32, mix_shape, Part.HYPER_CONNECTION)
        yield tensor(f"hc_{site}_scale", Kind.FP32, (3,), Part.HYPER_CONNECTION)
    yield tensor("ffn.gate.weight", Kind.BF16, (experts, hidden), Part.ROUTER)
    yield tensor("ffn.gate.bias", Kind.FP32, (experts,), Part.ROUTER_BIAS)
    yield tensor("ffn.gate.bias_vl", Kind.FP32, (experts,), Part.ROUTER_BIAS)
    matrices = (
        ("w1", (intermediate, hidden)),
        ("w2", (hidden, intermediate)),
        ("w3", (intermediate, hidden)),
    )
    for name, shape in matrices:
        yield tensor(f"ffn.shared_experts.{name}.weight", Kind.FP8, shape, Part.SHARED_EXPERTS)
    for expert in range(listed):
        for name, shape in matrices:
            full = f"{prefix}.ffn.experts.{expert}.{name}.weight"
            yield ExpectedTensor(full, component, Kind.FP4, shape, Part.ROUTED_EXPERTS, layer)


def _compressed(config: ModelConfig, layer: int) -> Iterator[ExpectedTensor]:
    """Compressor and index key of a KV source; query side of an index source."""
    text = config.text
    hidden, head, index_head = text.hidden_size, text.head_dim, text.index_head_dim

    def tensor(name: str, kind: Kind, shape: tuple[int, ...], part: Part) -> ExpectedTensor:
        full = f"layers.{layer}.attn.{name}.weight"
        return ExpectedTensor(full, Component.TEXT, kind, shape, part, layer)

    if layer in text.kv_source_layer_ids:
        yield tensor("compressor.wkv", Kind.BF16, (head, hidden), Part.COMPRESSOR)
        if text.compress_ratios[layer] > 1:
            yield tensor("compressor.wgate", Kind.BF16, (head, hidden), Part.COMPRESSOR)
        yield tensor("compressor.norm", Kind.BF16, (head,), Part.OTHER_NORM)
        yield tensor("indexer.wk", Kind.BF16, (index_head, head), Part.INDEX_KEY)
        yield tensor("indexer.k_norm", Kind.BF16, (index_head,), Part.OTHER_NORM)
    if layer in text.index_source_layer_ids:
        width = text.index_n_heads * index_head
        yield tensor("indexer.wq_b", Kind.FP8, (width, text.q_lora_rank), Part.INDEXER)
        yield tensor("indexer.weights_proj", Kind.BF16, (text.index_n_heads, hidden), Part.INDEXER)


def _engram(config: ModelConfig, row: int, layer: int) -> Iterator[ExpectedTensor]:
    text = config.text
    hidden, streams = text.hidden_size, text.hc_mult
    gathered = (text.engram_max_ngram_size - 1) * text.engram_n_heads * text.engram_head_dim
    table = (text.engram_num_embeddings[row], text.engram_head_dim)

    def tensor(name: str, kind: Kind, shape: tuple[int, ...], part: Part) -> ExpectedTensor:
        full = f"layers.{layer}.engram.{name}"
        return ExpectedTensor(full, Component.TEXT, kind, shape, part, layer)

    yield tensor("embed.weight", Kind.TABLE, table, Part.ENGRAM_TABLE)
    projection = ((streams + 1) * hidden, gathered)
    yield tensor("wkv.weight", Kind.FP8, projection, Part.ENGRAM_PROJECTION)
    yield tensor("q_weight", Kind.BF16, (streams, hidden), Part.ENGRAM_GATE)
    yield tensor("k_weight", Kind.BF16, (streams, hidden), Part.ENGRAM_GATE)


def _draft(config: ModelConfig) -> Iterator[ExpectedTensor]:
    """What the first and the last draft stage hold beside their block."""
    text = config.text
    hidden, vocabulary, rank = text.hidden_size, text.vocab_size, text.dspark_markov_rank
    last = text.num_nextn_predict_layers - 1
    features = len(text.dspark_target_layer_ids) * hidden

    def tensor(
        stage: int, name: str, kind: Kind, shape: tuple[int, ...], part: Part
    ) -> ExpectedTensor:
        full = f"mtp.{stage}.{name}.weight"
        return ExpectedTensor(full, Component.DRAFT, kind, shape, part, stage)

    yield tensor(0, "main_proj", Kind.FP8, (hidden, features), Part.DRAFT_PROJECTION)
    yield tensor(0, "main_norm", Kind.BF16, (hidden,), Part.OTHER_NORM)
    yield tensor(last, "norm", Kind.BF16, (hidden,), Part.OTHER_NORM)
    for name in ("embed", "head"):
        shape = (vocabulary, rank)
        yield tensor(last, f"markov_head.{name}", Kind.BF16, shape, Part.MARKOV_HEAD)
    yield tensor(last, "confidence_head.proj", Kind.BF16, (1, hidden + rank), Part.CONFIDENCE_HEAD)


def _vision(config: ModelConfig) -> Iterator[ExpectedTensor]:
    vision, hidden = config.vision, config.text.hidden_size
    width, intermediate = vision.hidden_size, vision.intermediate_size
    merged = width * vision.downsample_ratio**2

    def tensor(name: str, shape: tuple[int, ...], part: Part, layer: int = -1) -> ExpectedTensor:
        return ExpectedTensor(name, Component.VISION, Kind.BF16, shape, part, layer)

    for name in ("image_start", "image_end", "image_newline"):
        yield tensor(name, (hidden,), Part.DELIMITER)
    pixels = 3 * vision.patch_size**2
    yield tensor("vision.patch_embed.proj.weight", (width, pixels), Part.VISION_TOWER)
    yield tensor("vision.patch_embed.proj.bias", (width,), Part.VISION_TOWER)
    for layer in range(vision.num_hidden_layers):
        for name, shape in (
            ("norm1.weight", (width,)),
            ("norm2.weight", (width,)),
            ("attn.wqkv.weight", (3 * width, width)),
            ("attn.wqkv.bias", (3 * width,)),
            ("attn.wo.weight", (width, width)),
            ("attn.wo.bias", (width,)),
            ("mlp.w1.weight", (2 * intermediate, width)),
            ("mlp.w2.weight", (width, intermediate)),
        ):
            yield tensor(f"vision.blocks.{layer}.{name}", shape, Part.VISION_TOWER, layer)
    yield tensor("vision.norm.weight", (width,), Part.VISION_TOWER)
    for name, columns in (("w1", merged), ("w2", hidden)):
        yield tensor(f"aligner.{name}.weight", (hidden, columns), Part.ALIGNER)
        yield tensor(f"aligner.{name}.bias", (hidden,), Part.ALIGNER)
