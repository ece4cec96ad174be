"""The language model's configuration: `text_config` of the published config.json.

Source: model specification, section 1.2. Attribute names are the published keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from deepinfer.config.engram import EngramHash, engram_hashes
from deepinfer.config.fields import Section
from deepinfer.config.rope import YarnConfig, read_rope
from deepinfer.config.schedule import LayerPlan, first_decoder_layer, plan_layers

LARGEST_VOCABULARY: Final = 2**31 - 1  # token ids are stored as int32

TEXT_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "dtype": ("torch_dtype",),
    "hidden_size": ("dim",),
    "num_hidden_layers": ("n_layers",),
    "num_nextn_predict_layers": ("n_mtp_layers",),
}


@dataclass(frozen=True)
class TextConfig:
    """Sizes and schedule of the language model and its draft module.

    The `dspark_*` values have no meaning with `num_nextn_predict_layers` 0, the `engram_*` values
    none without Engram layers. candidate_source_layer_id None: there are no candidates.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    hidden_act: str
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: YarnConfig | None
    compress_rope_theta: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int | None
    candidate_topk_blocks: int
    candidate_block_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    scoring_func: str
    topk_method: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        """The plan of every backbone layer (section 4.1)."""
        return plan_layers(
            self.compress_ratios[: self.num_hidden_layers],
            self.kv_source_layer_ids,
            self.index_source_layer_ids,
            self.engram_layer_ids,
            self.candidate_source_layer_id,
        )

    def layer(self, index: int) -> LayerPlan:
        """The plan of backbone layer `index`, 0 <= index < num_hidden_layers."""
        if not 0 <= index < self.num_hidden_layers:
            raise IndexError(f"layer {index} of {self.num_hidden_layers}")
        return self.layers[index]

    @property
    def first_decoder_layer(self) -> int | None:
        """Index of the first layer of ratio 1, or None (section 6.1)."""
        return first_decoder_layer(self.compress_ratios[: self.num_hidden_layers])

    @property
    def draft_layers(self) -> int:
        """The number of DSpark stages."""
        return self.num_nextn_predict_layers

    @property
    def engram_columns(self) -> int:
        """How many table rows a token reads in an Engram layer: n-gram orders times heads."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    @cached_property
    def engram_hashes(self) -> dict[int, EngramHash]:
        """The hash of every Engram layer, by layer number (sections 8.3 and 8.4)."""
        return engram_hashes(self)


def read_text(section: Section) -> TextConfig:
    """Read the keys of `text_config`. `rules.py` checks relations between keys."""
    s = section
    s.literal("model_type", "deepseek_v41_text")
    s.literal("dtype", "bfloat16", default="bfloat16")
    s.flag("attention_bias", must=False, default=False)
    s.flag("tie_word_embeddings", must=False, default=False)
    if s.number("attention_dropout", used=s.has("attention_dropout")) != 0:
        raise s.error("attention_dropout", s.values["attention_dropout"], "0")
    s.flag("hc_shifted", must=True, default=True)
    s.flag("use_fp4_sparse_kv", must=True, default=True)
    s.flag("dspark_target_attn_input", must=True, default=True)
    s.ignore("initializer_range", "use_cache")  # keys of training, and an option of another library

    vocab = s.integer("vocab_size", high=LARGEST_VOCABULARY)
    layers = s.integer("num_hidden_layers")
    rope_theta, rope_scaling = read_rope(s)
    candidate_source = _read_candidate_source(s, layers)
    candidates = candidate_source is not None
    engram_layers = s.integers("engram_layer_ids", high=layers - 1, increasing=True)
    engram = bool(engram_layers)
    drafts = s.integer("num_nextn_predict_layers", low=0)
    draft = drafts > 0
    kv_sources = s.integers("kv_source_layer_ids", high=layers - 1, increasing=True)
    if s.has("index_k_source_layer_ids"):
        key_sources = s.integers("index_k_source_layer_ids")
        if key_sources != kv_sources:
            raise s.error(
                "index_k_source_layer_ids",
                list(key_sources),
                f"equal to kv_source_layer_ids, which is {list(kv_sources)}",
            )
    s.ignore("index_k_source_layer_ids")

    return TextConfig(
        vocab_size=vocab,
        hidden_size=s.integer("hidden_size"),
        num_hidden_layers=layers,
        num_attention_heads=s.integer("num_attention_heads"),
        num_key_value_heads=s.integer("num_key_value_heads", low=1, high=1),
        head_dim=s.integer("head_dim"),
        qk_rope_head_dim=s.integer("qk_rope_head_dim"),
        q_lora_rank=s.integer("q_lora_rank"),
        o_lora_rank=s.integer("o_lora_rank"),
        o_groups=s.integer("o_groups"),
        hidden_act=s.literal("hidden_act", "silu"),
        swiglu_limit=s.number("swiglu_limit", low=0),
        rms_norm_eps=s.number("rms_norm_eps", above=0),
        max_position_embeddings=s.integer("max_position_embeddings"),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        compress_rope_theta=s.number("compress_rope_theta", above=0),
        sliding_window=s.integer("sliding_window"),
        compress_ratios=s.integers("compress_ratios", high=2),
        kv_source_layer_ids=kv_sources,
        index_source_layer_ids=s.integers(
            "index_source_layer_ids", high=layers - 1, increasing=True
        ),
        index_n_heads=s.integer("index_n_heads"),
        index_head_dim=s.integer("index_head_dim"),
        index_topk=s.integer("index_topk"),
        candidate_source_layer_id=candidate_source,
        candidate_topk_blocks=s.integer("candidate_topk_blocks", used=candidates),
        candidate_block_size=s.integer("candidate_block_size", used=candidates),
        n_routed_experts=s.integer("n_routed_experts"),
        n_shared_experts=s.integer("n_shared_experts", low=1, high=1),
        num_experts_per_tok=s.integer("num_experts_per_tok"),
        moe_intermediate_size=s.integer("moe_intermediate_size"),
        scoring_func=s.literal("scoring_func", "sqrtsoftplus"),
        topk_method=s.literal("topk_method", "noaux_tc"),
        norm_topk_prob=s.flag("norm_topk_prob", must=True),
        routed_scaling_factor=s.number("routed_scaling_factor", above=0),
        hc_mult=s.integer("hc_mult"),
        hc_sinkhorn_iters=s.integer("hc_sinkhorn_iters"),
        hc_eps=s.number("hc_eps", above=0),
        engram_layer_ids=engram_layers,
        engram_num_embeddings=s.integers("engram_num_embeddings", low=1, used=engram),
        engram_max_ngram_size=s.integer("engram_max_ngram_size", low=2, used=engram),
        engram_vocab_size=s.integer("engram_vocab_size", used=engram),
        engram_n_heads=s.integer("engram_n_heads", used=engram),
        engram_head_dim=s.integer("engram_head_dim", used=engram),
        engram_pad_token_id=s.integer("engram_pad_token_id", low=0, high=vocab - 1, used=engram),
        engram_compressed_vocab_size=s.integer(
            "engram_compressed_vocab_size", high=vocab, used=engram
        ),
        num_nextn_predict_layers=drafts,
        dspark_block_size=s.integer("dspark_block_size", used=draft),
        dspark_noise_token_id=s.integer("dspark_noise_token_id", low=0, high=vocab - 1, used=draft),
        dspark_target_layer_ids=s.integers(
            "dspark_target_layer_ids", high=layers - 1, increasing=True, used=draft
        ),
        dspark_markov_rank=s.integer("dspark_markov_rank", used=draft),
        dspark_n_routed_experts=s.integer("dspark_n_routed_experts", used=draft),
        dspark_num_experts_per_tok=s.integer("dspark_num_experts_per_tok", used=draft),
    )


def _read_candidate_source(s: Section, layers: int) -> int | None:
    """`candidate_source_layer_id`: a layer; -1 or null for none. The key must be present."""
    key = "candidate_source_layer_id"
    if key in s.values and s.values[key] is None:
        s.ignore(key)
        return None
    value = s.integer(key, low=-1, high=layers - 1)
    return None if value == -1 else value
