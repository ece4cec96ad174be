"""Leaving a release limit is reported, never refused."""

from __future__ import annotations

import pytest

from deepinfer.config import Limit, ModelConfig, release_limits
from tests.config.released import released_config

T = "text_config"


@pytest.mark.parametrize(
    ("section", "changes", "key"),
    [
        (T, {"index_n_heads": 8}, "index_n_heads"),
        (T, {"candidate_block_size": 4}, "candidate_block_size"),
        (T, {"candidate_topk_blocks": 2044}, "candidate_topk_blocks"),
        (T, {"candidate_topk_blocks": 4104}, "candidate_topk_blocks"),
        (T, {"engram_head_dim": 64}, "engram_head_dim"),
        (T, {"engram_layer_ids": [1, 20]}, "engram_layer_ids"),
        (T, {"kv_source_layer_ids": [2, 8, 14, 20, 24]}, "kv_source_layer_ids"),
        (T, {"dspark_target_layer_ids": [19, 20]}, "dspark_target_layer_ids"),
        ("quantization_config", {"weight_block_size": [128, 128]}, "weight_block_size"),
        ("quantization_config", {"scale_fmt": "float"}, "scale_fmt"),
        ("quantization_config", {"expert_dtype": "fp8"}, "expert_dtype"),
        ("quantization_config", {"activation_scheme": "static"}, "activation_scheme"),
    ],
)
def test_limit(section: str, changes: dict[str, object], key: str) -> None:
    values = released_config()
    values[section] |= changes
    limits = release_limits(ModelConfig.from_dict(values))
    assert [limit.key for limit in limits] == [f"{section}.{key}"]
    assert limits[0].rule


def test_unquantised_is_a_limit() -> None:
    values = released_config()
    del values["quantization_config"]
    (limit,) = release_limits(ModelConfig.from_dict(values))
    assert (limit.key, limit.value) == ("quantization_config", None)


def test_a_limit_reads_as_a_sentence() -> None:
    assert str(Limit("a.b", 4, "8 or 16")) == "a.b = 4: 8 or 16"
