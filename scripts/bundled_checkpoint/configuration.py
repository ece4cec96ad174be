"""config.json of the bundled checkpoint: every architectural part, at the smallest useful sizes.

All release limits hold (32 index heads, candidate blocks of 8, Engram width 128 and so on), so that
backends with vendor kernels can run it. Token ids and Engram sizes come from the tokenizer.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bundled_checkpoint import vocabulary
from bundled_checkpoint.vocabulary import Vocabulary
from deepinfer.config import engram_hashes

VOCABULARY_SIZE = 1536

TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "dtype": "bfloat16",
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 96,
    "o_lora_rank": 64,
    "o_groups": 2,
    "hidden_act": "silu",
    "swiglu_limit": 2.0,  # low enough that the clamp acts on random weights
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "rope_theta": 10000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 512,
    },
    "compress_rope_theta": 160000,
    "sliding_window": 32,
    # window, window; ratio 2: full, reuse, reindex; ratio 1: full, reindex, reuse; 3 draft stages
    "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 5],
    "index_source_layer_ids": [2, 4, 5, 6],
    "index_n_heads": 32,
    "index_head_dim": 32,
    "index_topk": 32,
    "candidate_source_layer_id": 5,
    "candidate_topk_blocks": 8,
    "candidate_block_size": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1, 4],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 200,
    "engram_n_heads": 2,
    "engram_head_dim": 128,
    "engram_pad_token_id": 2,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [5, 6, 7],
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}

QUANTIZATION = {
    "quant_method": "fp8",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
    "activation_scheme": "dynamic",
}


def build_configuration(tokens: Vocabulary, compressed_vocab_size: int) -> dict[str, Any]:
    """config.json, parsed. compressed_vocab_size: number of compressed ids of the tokenizer."""
    text = {
        **TEXT,
        "engram_compressed_vocab_size": compressed_vocab_size,
        "dspark_noise_token_id": tokens.token_id(vocabulary.NOISE),
    }
    hashes = engram_hashes(SimpleNamespace(**text))
    text["engram_num_embeddings"] = [hashes[i].rows for i in text["engram_layer_ids"]]
    bos, eos, pad = (tokens.token_id(spelling) for spelling in vocabulary.LEADING)
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "image_token_id": tokens.token_id(vocabulary.IMAGE),
        "tie_word_embeddings": False,
        "quantization_config": QUANTIZATION,
        "text_config": text,
        "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 0},
    }
