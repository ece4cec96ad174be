"""The tensor table of the released configuration, against the published inventory."""

from __future__ import annotations

from collections import Counter

import pytest

from deepinfer.checkpoint import Component, expected_tensors
from deepinfer.checkpoint.kinds import component_of
from deepinfer.checkpoint.statistics import active_parameters, count_parameters
from deepinfer.config import ModelConfig
from tests.checkpoint.release import STORED_BYTES, TENSORS
from tests.checkpoint.writer import stored_bytes, stored_tensors, tiny_config
from tests.config.released import released_config

# Counts and bytes by stored dtype: model specification, section 2.1.
INVENTORY = {
    "I8": (47_232, 278_585_671_680),
    "F8_E4M3": (357, 204_015_223_296),
    "F8_E8M0": (47_589, 23_563_015_184),
    "BF16": (520, 3_952_883_712),
    "F32": (387, 169_229_128),
}


@pytest.fixture(scope="module")
def released() -> ModelConfig:
    return ModelConfig.from_dict(released_config())


@pytest.mark.slow
def test_counts_and_bytes_by_dtype(released: ModelConfig) -> None:
    tensors = stored_tensors(released)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor[1]] += 1
        sizes[tensor[1]] += stored_bytes(tensor)
    assert {dtype: (counts[dtype], sizes[dtype]) for dtype in counts} == INVENTORY
    assert (len(tensors), sum(sizes.values())) == (TENSORS, STORED_BYTES)


def test_parameters_by_role(released: ModelConfig) -> None:
    count = count_parameters(expected_tensors(released))
    assert (count.routed_experts, count.other_backbone) == (543_581_798_400, 8_299_036_784)
    assert (count.backbone, count.engram_tables) == (551_880_835_184, 196_613_849_600)
    assert (count.draft, count.vision) == (14_225_362_530, 485_268_480)
    assert count.total == 763_205_315_794


def test_active_parameters(released: ModelConfig) -> None:
    layer, compressor, indexer, key = 377_302_902, 2_621_440, 5_406_720, 65_536
    active = active_parameters(released, expected_tensors(released))
    encoder = 20 * layer + 3 * (2 * compressor + key + indexer) + 2 * 157_286_400
    assert active.prefill == active.encoder == encoder
    assert active.decoder_kv == compressor + key
    assert active.decoder == 20 * layer + 5 * indexer + compressor + key
    assert active.decode == encoder + active.decoder + 129_280 * 5_120
    assert [f"{n / 1e9:.2f}" for n in (active.prefill, active.decode)] == ["7.89", "16.13"]
    assert f"{active.draft / 1e9:.3f}" == "0.809"


def test_prefill_takes_all_layers_where_it_cannot_be_compact() -> None:
    config = ModelConfig.from_dict(tiny_config(compress_ratios=[0, 2, 2, 2, 0, 0]))
    active = active_parameters(config, expected_tensors(config))
    assert not active.compact
    assert active.prefill + active.head == active.decode


@pytest.mark.slow
def test_names_are_unique_and_know_their_component(released: ModelConfig) -> None:
    tensors = list(expected_tensors(released))
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    assert all(component_of(tensor.name) is tensor.component for tensor in tensors)
    assert {tensor.component for tensor in tensors} == set(Component)


def test_components_that_are_switched_off_have_no_tensors() -> None:
    config = tiny_config(
        num_nextn_predict_layers=0, compress_ratios=[0, 2, 1, 1], engram_layer_ids=[]
    )
    config["vision_config"]["num_hidden_layers"] = 0
    tensors = list(expected_tensors(ModelConfig.from_dict(config)))
    assert {tensor.component for tensor in tensors} == {Component.TEXT}
    assert not any("engram" in tensor.name for tensor in tensors)
    assert any(tensor.name == "layers.0.ffn.gate.bias_vl" for tensor in tensors)


@pytest.mark.parametrize(
    ("name", "shape", "scale"),
    [
        ("layers.0.attn.wo_a.weight", (8192, 4096), (256, 128)),
        ("layers.0.ffn.experts.383.w2.weight", (5120, 1152), (5120, 72)),
        ("layers.14.engram.embed.weight", (384_016_682, 256), (384_016_682, 8)),
        ("layers.1.engram.wkv.weight", (25_600, 6_144), (800, 192)),
        ("layers.36.attn.indexer.wq_b.weight", (4_096, 1_280), (128, 40)),
        ("mtp.0.main_proj.weight", (5_120, 15_360), (160, 480)),
    ],
)
def test_stored_shapes(
    released: ModelConfig, name: str, shape: tuple[int, int], scale: tuple[int, int]
) -> None:
    tensor = next(item for item in expected_tensors(released) if item.name == name)
    assert (tensor.code_shape, tensor.scale_shape) == (shape, scale)
