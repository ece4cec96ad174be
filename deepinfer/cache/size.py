"""Bytes of the cache for a batch and a length, and what other layouts would take.

Source: `CacheLayout`; model specification, section 5.6 and appendix D.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.cache.layout import CacheLayout
from deepinfer.config import TextConfig
from deepinfer.formats import WINDOW

VENDOR_BACKTRACKING = 6  # the vendor engine's ring slack
VENDOR_ALIGNMENT = 1056  # its slots are a multiple of lcm(32, 528)


@dataclass(frozen=True)
class CacheSize:
    """Bytes for `batch` sequences of `length` tokens each.

    block_bytes: one context block; page_bytes: one window page; slot_bytes: one running
    sequence's slot. context_bytes, window_bytes and slots_bytes are totals.
    """

    batch: int
    length: int
    block_bytes: int
    blocks_per_sequence: int
    page_bytes: int
    pages_per_sequence: int
    slot_bytes: int

    @property
    def context_bytes(self) -> int:
        """Context blocks of all sequences."""
        return self.batch * self.blocks_per_sequence * self.block_bytes

    @property
    def window_bytes(self) -> int:
        """Window pages of all sequences."""
        return self.batch * self.pages_per_sequence * self.page_bytes

    @property
    def slots_bytes(self) -> int:
        """Slots of all sequences."""
        return self.batch * self.slot_bytes

    @property
    def total_bytes(self) -> int:
        return self.context_bytes + self.window_bytes + self.slots_bytes


def cache_size(
    text: TextConfig, *, batch: int, length: int, drafts: bool = False, rows_per_step: int = 1
) -> CacheSize:
    """The caches of `batch` sequences of `length` tokens.

    drafts: the draft module is used. rows_per_step: 1 + drafts are always provided for; a prompt
    chunk in flight needs as many window pages as its rows ask for.
    """
    block = text.dspark_block_size if drafts else 0
    layout = CacheLayout(text, text.draft_layers if drafts else 0, backtrack=block + 1)
    return CacheSize(
        batch=batch,
        length=length,
        block_bytes=layout.block_bytes,
        blocks_per_sequence=layout.blocks_for(length),
        page_bytes=layout.page_bytes,
        pages_per_sequence=layout.window_pages_for(rows_per_step),
        slot_bytes=layout.slot_bytes(),
    )


def vendor_sequence_bytes(text: TextConfig) -> int:
    """Per-sequence state as rings, the layout of section 5.6 (3,128,928 bytes in the release)."""
    layers = text.num_hidden_layers + text.draft_layers
    ring = (text.sliding_window + VENDOR_BACKTRACKING) * WINDOW.entry_bytes(text.head_dim)
    total = layers * ring + CacheLayout(text, backtrack=VENDOR_BACKTRACKING).slot_bytes()
    return -(-total // VENDOR_ALIGNMENT) * VENDOR_ALIGNMENT


def v4_bytes_per_token(text: TextConfig) -> float:
    """Context cache of one token under DeepSeek-V4's layout at this depth and these widths.

    V4 keeps one compressed KV per layer instead of per group of layers: layers 0 and 1 are
    window-only, then ratios 4 and 128 alternate. An entry is FP8 for the unrotated channels with
    one scale byte per 64 of them, padded by one, and bf16 for the rotated ones (448 + 7 + 1 + 128
    = 584 bytes at 512). Ratio-4 layers also keep FP8 index keys with an fp32 scale (132 bytes at
    128). Source: the DeepSeek-V4 model of vLLM, its `fp8_ds_mla` cache and indexer; model
    specification, appendix D.
    """
    plain = text.head_dim - text.qk_rope_head_dim
    entry = plain + -(-plain // 64) + 1 + 2 * text.qk_rope_head_dim
    index = text.index_head_dim + 4
    compressed = max(text.num_hidden_layers - 2, 0)
    fine, coarse = -(-compressed // 2), compressed // 2
    return fine * (entry + index) / 4 + coarse * entry / 128
