"""Sizes of the nano model: every architectural part of DeepSeek-V4.1, small enough for two cores.

All limits of the release that its kernels state (32 index heads, candidate blocks of 8, Engram
width 128, Engram in the encoder) hold here too.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tokenizers import Tokenizer

from deepinfer.config import engram_hashes
from deepinfer.text import compressed_token_map

HERE: Final = Path(__file__).parent
TOKENIZER: Final = HERE / "tokenizer.json"

TEXT: Final[dict[str, Any]] = {
    "model_type": "deepseek_v41_text",
    "dtype": "bfloat16",
    "hidden_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 96,
    "o_lora_rank": 64,
    "o_groups": 2,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
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
    "sliding_window": 64,
    # window, window + Engram; ratio 2: full, reuse; ratio 1: full, reindex, reuse; 3 draft stages
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 4],
    "index_source_layer_ids": [2, 4, 5],
    "index_n_heads": 32,
    "index_head_dim": 32,
    "index_topk": 64,
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 16,
    "candidate_block_size": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 1500,
    "engram_n_heads": 1,
    "engram_head_dim": 128,
    "engram_pad_token_id": 2,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [4, 5, 6],
    "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 8,
    "dspark_num_experts_per_tok": 2,
}

QUANTIZATION: Final[dict[str, Any]] = {
    "quant_method": "fp8",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
    "activation_scheme": "dynamic",
}

NOISE: Final = "<｜draft▁slot｜>"
IMAGE: Final = "<｜deepseek_image｜>"
LEADING: Final = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")


def published_configuration(tokenizer_file: Path = TOKENIZER) -> dict[str, Any]:
    """config.json, parsed. Vocabulary, special ids and Engram rows follow from the tokenizer."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    size = tokenizer.get_vocab_size()

    def token(spelling: str) -> int:
        found: int | None = tokenizer.token_to_id(spelling)
        if found is None:
            raise ValueError(f"{tokenizer_file}: {spelling!r} is no token of it; make it again")
        return found

    text = copy.deepcopy(TEXT)
    text["vocab_size"] = size
    text["engram_compressed_vocab_size"] = int(compressed_token_map(tokenizer_file, size).max()) + 1
    text["dspark_noise_token_id"] = token(NOISE)
    hashes = engram_hashes(SimpleNamespace(**text))
    text["engram_num_embeddings"] = [hashes[i].rows for i in text["engram_layer_ids"]]
    bos, eos, pad = (token(spelling) for spelling in LEADING)
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "image_token_id": token(IMAGE),
        "tie_word_embeddings": False,
        "quantization_config": copy.deepcopy(QUANTIZATION),
        "text_config": text,
        "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 0},
    }
