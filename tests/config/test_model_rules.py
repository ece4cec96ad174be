"""Every model rule: one configuration that breaks it, and what the error says.

Each row: dotted key, the value put there (MISSING removes the key), text that the error must
contain. The error always names the file and the dotted key.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from deepinfer.config import ModelConfig
from deepinfer.errors import ConfigError
from tests.config.released import released_config

MISSING = object()


def mutate(values: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    *path, last = key.split(".")
    place = values
    for name in path:
        place = place[name]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return values


def message_of(values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(values, source="some/config.json")
    return str(caught.value)


T = "text_config."
V = "vision_config."
Q = "quantization_config."
RULES: list[tuple[str, object, str]] = [
    # known literals
    ("architectures", [], "exactly one entry"),
    ("architectures", ["DeepseekV41ForCausalLM"] * 2, "exactly one entry"),
    ("architectures", ["LlamaForCausalLM"], '"DeepseekV41ForCausalLM"'),
    ("architectures", "DeepseekV41ForCausalLM", "exactly one entry"),
    ("model_type", "deepseek_v4", "supported model types: deepseek_v41"),
    ("model_type", "deepseek_v41 ", "exact match"),
    ("model_type", "DEEPSEEK_V41", "exact match"),
    ("model_type", ["deepseek_v41"], "exact match"),
    ("dtype", "float16", '"bfloat16"'),
    ("tie_word_embeddings", True, "false"),
    (T + "model_type", "deepseek_v41", '"deepseek_v41_text"'),
    (T + "dtype", "float32", '"bfloat16"'),
    (T + "hidden_act", "gelu", '"silu"'),
    (T + "attention_bias", True, "false"),
    (T + "attention_dropout", 0.1, "0"),
    (T + "tie_word_embeddings", True, "false"),
    (T + "num_key_value_heads", 2, "1..1"),
    (T + "n_shared_experts", 2, "1..1"),
    (T + "scoring_func", "sigmoid", '"sqrtsoftplus"'),
    (T + "topk_method", "greedy", '"noaux_tc"'),
    (T + "norm_topk_prob", False, "true"),
    (T + "norm_topk_prob", 1, "true"),
    (T + "hc_shifted", False, "true"),
    (T + "use_fp4_sparse_kv", False, "true"),
    (T + "dspark_target_attn_input", False, "true"),
    (T + "index_k_source_layer_ids", [2, 8, 14], "equal to kv_source_layer_ids"),
    (V + "model_type", "clip", '"deepseek_v41_vision"'),
    (Q + "quant_method", "awq", '"fp8"'),
    (Q + "weight_block_size", [32], "two integers"),
    (Q + "weight_block_size", 32, "a list of integers"),
    (Q + "scale_fmt", None, "a string"),
    # positive sizes and finite numbers
    (T + "rms_norm_eps", 0, "greater than 0"),
    (T + "rms_norm_eps", math.nan, "finite"),
    (T + "rms_norm_eps", math.inf, "finite"),
    (T + "rms_norm_eps", "1e-20", "finite number"),
    (T + "swiglu_limit", -1.0, "at least 0"),
    (T + "swiglu_limit", True, "finite number"),
    (T + "rope_theta", 0, "greater than 0"),
    (T + "compress_rope_theta", -5, "greater than 0"),
    (T + "compress_rope_theta", 10**400, "finite"),
    (T + "swiglu_limit", 1e39, "at least 0 that fp32 can hold"),
    (T + "rms_norm_eps", 1e308, "greater than 0 that fp32 can hold"),
    (T + "routed_scaling_factor", 0.0, "greater than 0"),
    (T + "hc_eps", 0.0, "greater than 0"),
    (T + "vocab_size", 2**31, "1..2147483647"),
    (T + "hidden_size", 10**30, "64 bits"),
    (V + "num_hidden_layers", -1, "at least 0"),
    (V + "max_image_tokens", 3, "at least 4"),
    (V + "max_wh_ratio", 0.5, "at least 1"),
    (V + "rope_theta", 0, "greater than 0"),
    # ids inside the vocabulary
    ("bos_token_id", 129280, "0..129279"),
    ("eos_token_id", -1, "0..129279"),
    ("pad_token_id", [2], "an integer"),
    ("image_token_id", 129280, "0..129279"),
    ("image_token_id", None, "an integer"),
    (T + "bos_token_id", 1, "equal to the top level's bos_token_id, which is 0"),
    (T + "engram_pad_token_id", 129280, "0..129279"),
    (T + "engram_compressed_vocab_size", 129281, "1..129280"),
    (T + "dspark_noise_token_id", 129280, "0..129279"),
    # divisibility by head, group and scale block
    (T + "o_groups", 7, "multiple of o_groups (7)"),
    (T + "qk_rope_head_dim", 63, "even"),
    (T + "qk_rope_head_dim", 192, "at most head_dim (512) and index_head_dim (128)"),
    (T + "head_dim", 520, "a multiple of 32"),
    (T + "index_head_dim", 136, "a multiple of 32"),
    (T + "moe_intermediate_size", 2300, "a multiple of 32"),
    (T + "hidden_size", 5130, "a multiple of 32"),
    (T + "q_lora_rank", 1290, "a multiple of 32"),
    (T + "o_lora_rank", 1000, "a multiple of 32"),
    (T + "engram_head_dim", 250, "a multiple of 32"),
    (V + "num_attention_heads", 15, "multiple of num_attention_heads (15)"),
    (V + "hidden_size", 1056, "divisible by 4"),
    # experts
    (T + "num_experts_per_tok", 385, "at most n_routed_experts (384)"),
    (T + "dspark_num_experts_per_tok", 129, "at most dspark_n_routed_experts (128)"),
    # the layer schedule
    (T + "compress_ratios", [0] * 2 + [2] * 18 + [1] * 20, "40 + 3 entries, and has 40"),
    (T + "compress_ratios", [0] * 2 + [4] * 18 + [1] * 20 + [0] * 3, "0..2"),
    (T + "compress_ratios", [0] * 2 + [2] * 18 + [1] * 20 + [0, 1, 0], "draft layers"),
    (T + "compress_ratios", [0] * 2 + [True] * 18 + [1] * 20 + [0] * 3, "an integer"),
    (T + "compress_ratios", [0, 2] + [2] * 18 + [1] * 20 + [0] * 3, "there is none"),
    (T + "compress_ratios", [0] * 2 + [2] * 17 + [1] * 21 + [0] * 3, "layer 14, has ratio 2"),
    (T + "num_hidden_layers", 39, "0..38"),
    (T + "kv_source_layer_ids", [8, 2, 14, 20], "strictly increasing"),
    (T + "kv_source_layer_ids", [2, 8, 14, 20, 40], "0..39"),
    (T + "kv_source_layer_ids", [2, 8, 14, 20, 21], "subset of index_source_layer_ids"),
    (T + "kv_source_layer_ids", [1, 2, 8, 14, 20], "layer 1 has compress_ratios 0"),
    (T + "index_source_layer_ids", [2, 8, 14, 20, 20], "strictly increasing"),
    (T + "index_source_layer_ids", [0, 2, 8, 14, 20], "layer 0 has compress_ratios 0"),
    # candidates
    (T + "candidate_source_layer_id", 24, "one of kv_source_layer_ids"),
    (T + "candidate_source_layer_id", -2, "-1..39"),
    (T + "candidate_source_layer_id", 14, "layer 20 has ratio 1, layer 14 has 2"),
    (T + "candidate_topk_blocks", 0, "at least 1"),
    (T + "candidate_block_size", 0, "at least 1"),
    (T + "candidate_topk_blocks", 63, "(504) is at least index_topk (512)"),
    # Engram
    (T + "engram_layer_ids", [14, 1], "strictly increasing"),
    (T + "engram_layer_ids", [1, 40], "0..39"),
    (T + "engram_num_embeddings", [384006168], "one entry per engram_layer_ids [1, 14]"),
    (T + "engram_num_embeddings", [384006168, 384016681], "for layer 14 that is at least"),
    (T + "engram_num_embeddings", [384006169, 384016682], "that is 384006168, not 384006169"),
    (T + "engram_max_ngram_size", 1, "at least 2"),
    # draft module
    (T + "num_nextn_predict_layers", -1, "at least 0"),
    (T + "dspark_block_size", 0, "at least 1"),
    (T + "dspark_target_layer_ids", [], "at least one layer"),
    (T + "dspark_target_layer_ids", [38, 37, 39], "strictly increasing"),
    (T + "dspark_target_layer_ids", [37, 38, 40], "0..39"),
    # rotary
    (T + "rope_scaling", "yarn", "an object or null"),
    (T + "rope_scaling.rope_type", "linear", '"yarn"'),
    (T + "rope_scaling.factor", 0.5, "at least 1"),
    (T + "rope_scaling.beta_slow", 0, "greater than 0"),
    (T + "rope_scaling.beta_fast", 0.5, "at least beta_slow (1)"),
    (T + "rope_scaling.original_max_position_embeddings", 65536.0, "an integer"),
    (T + "rope_parameters", {"rope_type": "default"}, "two spellings of one setting"),
    # sections
    ("text_config", None, "an object"),
    ("text_config", [], "an object"),
    ("vision_config", None, "num_hidden_layers"),
    ("quantization_config", "fp8", "an object or null"),
    # two spellings that disagree
    (T + "dim", 4096, "another spelling of it, which is 4096"),
    ("torch_dtype", "float16", "another spelling of it"),
]


def rule_id(row: tuple[str, object, str]) -> str:
    return f"{row[0]}={str(row[1])[:24]}"


@pytest.mark.parametrize(("key", "value", "expected"), RULES, ids=map(rule_id, RULES))
def test_broken_rule(key: str, value: object, expected: str) -> None:
    message = message_of(mutate(released_config(), key, value))
    assert message.startswith("some/config.json: ")
    assert expected in message


OPTIONAL = {"attention_bias", "attention_dropout", "initializer_range", "use_cache"}
OPTIONAL |= {"tie_word_embeddings", "max_wh_ratio"}


def keys_of(section: str) -> list[str]:
    values = released_config()
    return [f"{section}.{key}" for key in values[section] if key not in OPTIONAL]


REQUIRED = [key for key in released_config() if key not in (*OPTIONAL, "quantization_config")]
REQUIRED += keys_of("text_config") + keys_of("quantization_config")
REQUIRED += [key for key in keys_of("vision_config") if key != "vision_config.model_type"]
REQUIRED += [f"text_config.rope_scaling.{k}" for k in ("rope_type", "factor", "beta_fast")]


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key(key: str) -> None:
    message = message_of(mutate(released_config(), key, MISSING))
    assert f"{key} is missing" in message or f"{key} = " in message


NULL_MEANS_SOMETHING = {"text_config.rope_scaling", "text_config.candidate_source_layer_id"}


@pytest.mark.parametrize("key", [key for key in REQUIRED if key not in NULL_MEANS_SOMETHING])
def test_null_is_not_a_value(key: str) -> None:
    assert f"{key} = null" in message_of(mutate(released_config(), key, None))


SIZES = [
    key
    for section in ("text_config", "vision_config")
    for key in keys_of(section)
    if type(released_config()[section][key.split(".")[1]]) is int and "rope_theta" not in key
]


@pytest.mark.parametrize("value", ["64", True, 64.0, [64], {}], ids=repr)
@pytest.mark.parametrize("key", SIZES)
def test_integers_are_not_converted(key: str, value: object) -> None:
    message = message_of(mutate(released_config(), key, value))
    assert f"{key} = " in message
    assert "an integer" in message


MAY_BE_ZERO = {"candidate_source_layer_id", "num_nextn_predict_layers", "dspark_noise_token_id"}
MAY_BE_ZERO |= {"engram_pad_token_id"}


@pytest.mark.parametrize("key", [k for k in SIZES if k.split(".")[1] not in MAY_BE_ZERO])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_positive(key: str, value: int) -> None:
    if key == "vision_config.num_hidden_layers" and value == 0:
        assert not ModelConfig.from_dict(mutate(released_config(), key, 0)).vision.enabled
    else:
        assert f"{key} = {value}" in message_of(mutate(released_config(), key, value))


@pytest.mark.parametrize("values", [[], None, "x", 3], ids=repr)
def test_config_is_an_object(values: object) -> None:
    assert "must be a JSON object" in message_of(values)


def test_flat_file_is_recognised() -> None:
    assert "nested config.json" in message_of({"dim": 5120, "n_layers": 40, "n_mtp_layers": 3})
