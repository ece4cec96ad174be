"""Layer roles follow from the schedule (model specification, section 4.1)."""

from __future__ import annotations

import pytest

from deepinfer.config import LayerPlan, ModelConfig
from tests.config.released import released_config


def window_plan(index: int, engram: bool = False) -> LayerPlan:
    return LayerPlan(index, 0, "window", None, None, engram, False, False)


def released_table() -> list[LayerPlan]:
    """The table of section 4.1, row by row."""
    plans = [window_plan(0), window_plan(1, engram=True)]
    for i in range(2, 20):
        source = 2 if i < 8 else 8 if i < 14 else 14
        role = "full" if i == source else "reuse"
        plans.append(LayerPlan(i, 2, role, source, source, i == 14, False, False))
    plans.append(LayerPlan(20, 1, "full", 20, 20, False, True, False))
    for i in range(21, 40):
        index_source = i - i % 4
        role = "reindex" if i == index_source else "reuse"
        plans.append(LayerPlan(i, 1, role, 20, index_source, False, False, role == "reindex"))
    return plans


@pytest.mark.parametrize("expected", released_table(), ids=lambda plan: f"layer{plan.index}")
def test_released_roles(expected: LayerPlan) -> None:
    assert ModelConfig.from_dict(released_config()).text.layer(expected.index) == expected


def test_released_split_and_drafts() -> None:
    text = ModelConfig.from_dict(released_config()).text
    assert (len(text.layers), text.first_decoder_layer, text.draft_layers) == (40, 20, 3)


def schedule(ratios: list[int], kv: list[int], index: list[int], candidate: int | None):
    values = released_config()
    values["text_config"] |= {
        "num_hidden_layers": len(ratios),
        "num_nextn_predict_layers": 0,
        "compress_ratios": ratios,
        "kv_source_layer_ids": kv,
        "index_source_layer_ids": index,
        "candidate_source_layer_id": candidate,
        "engram_layer_ids": [],
        "engram_num_embeddings": [],
    }
    return ModelConfig.from_dict(values).text


def test_ratio_2_after_ratio_1() -> None:
    text = schedule([0, 1, 1, 2, 2, 0, 2], kv=[1, 3], index=[1, 3, 6], candidate=None)
    assert [(p.role, p.ratio, p.kv_source, p.index_source) for p in text.layers] == [
        ("window", 0, None, None),
        ("full", 1, 1, 1),
        ("reuse", 1, 1, 1),
        ("full", 2, 3, 3),
        ("reuse", 2, 3, 3),
        ("window", 0, None, None),
        ("reindex", 2, 3, 6),
    ]
    assert text.first_decoder_layer == 1


def test_full_layer_after_the_candidate_source_uses_candidates() -> None:
    text = schedule([1, 1, 1, 1], kv=[0, 2], index=[0, 1, 2], candidate=0)
    assert [p.uses_candidates for p in text.layers] == [False, True, True, False]
    assert [p.candidate_source for p in text.layers] == [True, False, False, False]


@pytest.mark.parametrize("disabled", [None, -1])
def test_candidates_can_be_disabled(disabled: int | None) -> None:
    text = schedule([1, 1], kv=[0], index=[0, 1], candidate=disabled)
    assert text.candidate_source_layer_id is None
    assert not any(p.candidate_source or p.uses_candidates for p in text.layers)


def test_windows_only() -> None:
    text = schedule([0, 0], kv=[], index=[], candidate=None)
    assert text.first_decoder_layer is None
    assert text.layers == (window_plan(0), window_plan(1))


@pytest.mark.parametrize("index", [-1, 40])
def test_no_such_layer(index: int) -> None:
    with pytest.raises(IndexError, match=f"layer {index} of 40"):
        ModelConfig.from_dict(released_config()).text.layer(index)
