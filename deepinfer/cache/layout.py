"""Where each layer's entries stand: the canonical images of blocks and pages, and the slot.

Source: the design, "Cache"; byte counts: model specification, sections 5.2 to 5.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from deepinfer.arrays import Int64Array
from deepinfer.config import TextConfig
from deepinfer.formats import INDEX, INDEX_BF16, MAIN, MAIN_BF16, WINDOW, EntryFormat

CONTEXT_FORMATS: dict[str, tuple[EntryFormat, EntryFormat]] = {
    "fp4": (MAIN, INDEX),
    "bf16": (MAIN_BF16, INDEX_BF16),
}
"""Formats of main and index entries by cache_dtype."""


BLOCK_TOKENS = 128
PAGE_TOKENS = 16


@dataclass(frozen=True)
class ContextLayer:
    """One KV-source layer inside a context block: offsets in bytes, entries per block."""

    layer: int
    ratio: int
    entries: int
    index_offset: int
    main_offset: int


@dataclass(frozen=True)
class CacheLayout:
    """Geometry of the three kinds of cache memory for one model.

    backtrack: positions by which a sequence may be taken back (drafts + 1). window_layers counts
    the backbone's layers, then the draft stages in use. block_tokens and page_tokens are 128 and
    16 in every canonical image; tests use smaller ones to reach edges with short prompts.
    cache_dtype: a key of `CONTEXT_FORMATS`; only fp4 has canonical images.
    """

    text: TextConfig
    draft_stages: int = 0
    backtrack: int = 1
    block_tokens: int = BLOCK_TOKENS
    page_tokens: int = PAGE_TOKENS
    cache_dtype: str = "fp4"

    def __post_init__(self) -> None:
        for ratio in set(self.text.compress_ratios):
            if ratio and self.block_tokens % ratio:
                raise ValueError(
                    f"block_tokens {self.block_tokens} is not a multiple of ratio {ratio}"
                )

    @property
    def main_format(self) -> EntryFormat:
        return CONTEXT_FORMATS[self.cache_dtype][0]

    @property
    def index_format(self) -> EntryFormat:
        return CONTEXT_FORMATS[self.cache_dtype][1]

    @cached_property
    def context_layers(self) -> dict[int, ContextLayer]:
        """KV-source layers ascending, each with its index region and then its main region."""
        layers: dict[int, ContextLayer] = {}
        offset = 0
        for plan in self.text.layers:
            if plan.role != "full":
                continue
            entries = self.block_tokens // plan.ratio
            main = offset + self.index_format.region_bytes(entries, self.text.index_head_dim)
            layers[plan.index] = ContextLayer(plan.index, plan.ratio, entries, offset, main)
            offset = main + self.main_format.region_bytes(entries, self.text.head_dim)
        return layers

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a canonical context block (113,920 in the release)."""
        total = 0
        for layer in self.context_layers.values():
            total += self.index_format.region_bytes(layer.entries, self.text.index_head_dim)
            total += self.main_format.region_bytes(layer.entries, self.text.head_dim)
        return total

    @property
    def window_layers(self) -> int:
        """Layers with window entries: the backbone's, then the draft stages."""
        return self.text.num_hidden_layers + self.draft_stages

    @cached_property
    def window_layer_bytes(self) -> int:
        """Bytes of one layer's window entries in a page."""
        return WINDOW.region_bytes(self.page_tokens, self.text.head_dim)

    @property
    def page_bytes(self) -> int:
        """Bytes of a window page of all window layers (363,264 in the release)."""
        return self.window_layers * self.window_layer_bytes

    @cached_property
    def compressor_rings(self) -> dict[int, int]:
        """Positions kept per slot by each compressor of ratio 2: ratio + backtrack - 1."""
        return {
            layer.layer: layer.ratio + self.backtrack - 1
            for layer in self.context_layers.values()
            if layer.ratio > 1
        }

    def slot_bytes(self, element_bytes: int = 4) -> int:
        """Bytes of one sequence's slot: value and gate of every pending member."""
        width = 2 * self.text.head_dim * element_bytes
        return sum(ring * width for ring in self.compressor_rings.values())

    def bytes_per_token(self) -> float:
        """Context bytes that every token keeps for good (890 in the release)."""
        return self.block_bytes / self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Context blocks that hold `tokens` tokens; 0 for a model without compressed layers."""
        return -(-tokens // self.block_tokens) if self.block_bytes else 0

    def blocks_needed(self, tokens: Int64Array) -> Int64Array:
        """`blocks_for` of several lengths."""
        return -(-tokens // self.block_tokens) * int(self.block_bytes > 0)

    def window_pages_for(self, rows: int) -> int:
        """Pages that one sequence can hold while a step of `rows` rows is in flight."""
        span = self.text.sliding_window + rows + self.backtrack - 1
        return -(-span // self.page_tokens) + 1
