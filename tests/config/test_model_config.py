"""What loads: published and golden files, other spellings, unused and unknown keys."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path

import pytest

from deepinfer.config import ModelConfig, UnknownConfigKeyWarning, release_limits
from deepinfer.errors import ConfigError
from tests.config.released import released_config


def test_released_config_loads_without_warning_or_limit() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = ModelConfig.from_dict(released_config())
    assert release_limits(config) == []
    assert config.unknown_keys == ()


def test_values_keep_their_published_names() -> None:
    config = ModelConfig.from_dict(released_config())
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 1, 2)
    assert config.image_token_id == 129264
    for key, value in released_config()["text_config"].items():
        if hasattr(config.text, key) and key != "rope_scaling":
            assert getattr(config.text, key) == (tuple(value) if isinstance(value, list) else value)
    yarn = config.text.rope_scaling
    assert yarn is not None
    assert (yarn.factor, yarn.beta_fast, yarn.beta_slow) == (16.0, 32.0, 1.0)
    assert yarn.original_max_position_embeddings == 65536
    assert config.vision.head_dim == 64
    assert config.quantization is not None
    assert config.quantization.weight_block_size == (32, 32)


def golden_configs() -> list[Path]:
    directory = os.environ.get("DEEPINFER_GOLDEN_DIR")
    return sorted(Path(directory).glob("*/checkpoint/config.json")) if directory else []


@pytest.mark.skipif(not golden_configs(), reason="DEEPINFER_GOLDEN_DIR names no golden data")
def test_golden_configs_load() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configs = [ModelConfig.from_file(path) for path in golden_configs()]
    assert all(release_limits(config) for config in configs)


def test_other_spellings() -> None:
    values = released_config()
    text = values["text_config"]
    text["dim"] = text.pop("hidden_size")
    text["n_layers"] = text.pop("num_hidden_layers")
    text["n_mtp_layers"] = text.pop("num_nextn_predict_layers")
    values["torch_dtype"] = values.pop("dtype")
    scaling = text.pop("rope_scaling")
    text["rope_parameters"] = scaling | {"rope_theta": text.pop("rope_theta")}
    assert ModelConfig.from_dict(values) == ModelConfig.from_dict(released_config())


def test_both_spellings_may_agree() -> None:
    values = released_config()
    values["text_config"]["dim"] = 5120
    assert ModelConfig.from_dict(values).text.hidden_size == 5120


def test_legacy_spelling_of_the_rope_type() -> None:
    values = released_config()
    scaling = values["text_config"]["rope_scaling"]
    scaling["type"] = scaling.pop("rope_type")
    assert ModelConfig.from_dict(values) == ModelConfig.from_dict(released_config())


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}])
def test_no_yarn(scaling: object) -> None:
    values = released_config()
    values["text_config"]["rope_scaling"] = scaling
    assert ModelConfig.from_dict(values).text.rope_scaling is None


def test_two_values_of_rope_theta() -> None:
    values = released_config()
    text = values["text_config"]
    text["rope_parameters"] = text.pop("rope_scaling") | {"rope_theta": 5000}
    with pytest.raises(ConfigError, match="rope_theta = 10000: must be equal to"):
        ModelConfig.from_dict(values)


def test_accepted_keys_that_the_release_lacks() -> None:
    values = released_config()
    values["text_config"] |= {
        "hc_shifted": True,
        "use_fp4_sparse_kv": True,
        "index_k_source_layer_ids": [2, 8, 14, 20],
        "dspark_target_attn_input": True,
    }
    assert ModelConfig.from_dict(values) == ModelConfig.from_dict(released_config())


def test_unknown_keys_give_one_warning() -> None:
    values = released_config()
    values["auto_map"] = {"AutoModel": "x.Y"}
    values["text_config"]["num_hash_layers"] = 3
    values["text_config"]["rope_scaling"]["mscale"] = 1.0
    values["vision_config"]["dropout"] = 0
    values["quantization_config"]["ignored_layers"] = []
    with pytest.warns(UnknownConfigKeyWarning) as caught:
        config = ModelConfig.from_dict(values)
    assert len(caught) == 1
    assert set(config.unknown_keys) == {
        "auto_map",
        "text_config.num_hash_layers",
        "text_config.rope_scaling.mscale",
        "vision_config.dropout",
        "quantization_config.ignored_layers",
    }
    assert all(key in str(caught[0].message) for key in config.unknown_keys)


def test_unknown_keys_are_shown_on_one_line_of_bounded_length() -> None:
    values = released_config()
    odd = {"line\nbreak": 0, "\x1b[31mred": 0, "long" * 1000: 0}
    values |= odd | {f"key{number:06}": 0 for number in range(50_000)}
    with pytest.warns(UnknownConfigKeyWarning) as caught:
        config = ModelConfig.from_dict(values, source="c")
    message = str(caught[0].message)
    assert len(config.unknown_keys) == 50_003
    assert message.isprintable()
    assert len(message) < 1000
    assert message.endswith(", key000016, and 49983 more")


def test_many_repeated_keys_are_found_at_once(tmp_path: Path) -> None:
    keys = [f'"key{number}": 0' for number in range(200_000)]
    (tmp_path / "config.json").write_text("{" + ", ".join([*keys, keys[-1]]) + "}")
    started = time.process_time()
    with pytest.raises(ConfigError, match=r"repeated keys: key199999$"):
        ModelConfig.from_file(tmp_path)
    assert time.process_time() - started < 30  # comparing each with each takes far longer


def test_without_draft_the_dspark_keys_mean_nothing() -> None:
    values = released_config()
    text = values["text_config"]
    text["num_nextn_predict_layers"] = 0
    text["compress_ratios"] = text["compress_ratios"][:40]
    text |= {"dspark_block_size": 0, "dspark_target_layer_ids": [], "dspark_markov_rank": None}
    del text["dspark_n_routed_experts"]
    assert ModelConfig.from_dict(values).text.draft_layers == 0


def test_without_engram_its_keys_mean_nothing() -> None:
    values = released_config()
    text = values["text_config"]
    for key in [key for key in text if key.startswith("engram_")]:
        del text[key]
    text["engram_layer_ids"] = []
    config = ModelConfig.from_dict(values)
    assert config.text.engram_hashes == {}


def test_text_only_config_needs_no_image_id() -> None:
    values = released_config()
    values["vision_config"] = {"num_hidden_layers": 0}
    del values["image_token_id"]
    config = ModelConfig.from_dict(values)
    assert config.image_token_id is None
    assert not config.vision.enabled


def test_control_ids_may_stand_in_text_config_alone() -> None:
    values = released_config()
    values["text_config"]["eos_token_id"] = values.pop("eos_token_id")
    assert ModelConfig.from_dict(values).eos_token_id == 1


def test_unquantised_widths_need_no_scale_block() -> None:
    values = released_config()
    del values["quantization_config"]
    values["text_config"] |= {"hidden_size": 5130, "q_lora_rank": 1290, "o_lora_rank": 1000}
    config = ModelConfig.from_dict(values)
    assert config.quantization is None
    assert config.text.hidden_size == 5130


def test_from_file_takes_a_file_or_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(released_config()))
    assert ModelConfig.from_file(file) == ModelConfig.from_file(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object, not list"),
        (b"null", "must be a JSON object"),
        (b'{"model_type": "\xff"}', "not UTF-8 (byte 16)"),
        (b'\xef\xbb\xbf{"model_type": "deepseek_v41"}', "not valid JSON"),
        (b'{"dtype": "bfloat16", "dtype": "bfloat16"}', "repeated keys: dtype"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"bos_token_id": 1' + b"0" * 5000 + b"}", "not valid JSON"),
        (b'{"model_type": "deepseek_v4"}', "supported model types: deepseek_v41"),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_file(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert expected in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: not found"):
        ModelConfig.from_file(tmp_path)
