"""Configurations and layouts for the cache tests; nothing here reads a checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Any

from deepinfer.cache import CacheLayout
from deepinfer.config import ModelConfig, TextConfig
from tests.config.released import released_config


def released_text() -> TextConfig:
    """`text_config` of the release."""
    return ModelConfig.from_dict(released_config()).text


def text_with(**changes: Any) -> TextConfig:
    """The released text configuration with other fields."""
    return dataclasses.replace(released_text(), **changes)


def scheduled(*ratios: int, window: int = 8) -> TextConfig:
    """A model of these ratios, in which every compressed layer owns its entries."""
    sources = tuple(layer for layer, ratio in enumerate(ratios) if ratio)
    return text_with(
        num_hidden_layers=len(ratios),
        compress_ratios=ratios,
        kv_source_layer_ids=sources,
        index_source_layer_ids=sources,
        candidate_source_layer_id=None,
        engram_layer_ids=(),
        sliding_window=window,
        head_dim=64,
        index_head_dim=32,
    )


def small_layout(
    *ratios: int, window: int = 8, page_tokens: int = 4, backtrack: int = 1
) -> CacheLayout:
    """Blocks of 16 tokens; ratios as in `scheduled`, by default one layer of each kind."""
    text = scheduled(*(ratios or (0, 2, 1)), window=window)
    return CacheLayout(text, backtrack=backtrack, block_tokens=16, page_tokens=page_tokens)
