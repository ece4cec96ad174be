"""Bytes of the caches that a configuration needs: per token, per page, per sequence.

Context blocks hold 128 tokens of every KV source, layers ascending: the index region, then the
main region. Window pages hold 16 tokens of every window layer, drafts last. A slot holds what is
not addressed by token. Source: model specification, sections 5.2 to 5.6 and 8.6.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.config.model import ModelConfig, TextConfig
from deepinfer.formats import INDEX, MAIN, WINDOW

BLOCK_TOKENS = 128
PAGE_TOKENS = 16
VENDOR_BACKTRACKING = 6  # the vendor engine's ring slack of section 5.6
VENDOR_ALIGNMENT = 1056  # its slots are a multiple of lcm(32, 528)


@dataclass(frozen=True)
class CacheSize:
    """Bytes for `batch` sequences of `length` tokens each.

    drafts: draft positions per step, 0 without the draft module; rows_per_step: rows of one
    sequence in a step. block_bytes: 128 tokens of context; page_bytes: 16 tokens of window;
    slot_bytes: one running sequence. context_bytes, window_bytes and slots_bytes are totals.
    """

    batch: int
    length: int
    drafts: int
    rows_per_step: int
    block_bytes: int
    page_bytes: int
    slot_bytes: int
    pages_per_sequence: int

    @property
    def context_bytes(self) -> int:
        """Context blocks of all sequences."""
        return self.batch * -(-self.length // BLOCK_TOKENS) * self.block_bytes

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
        """Everything."""
        return self.context_bytes + self.window_bytes + self.slots_bytes


def block_bytes(text: TextConfig) -> int:
    """One context block, unpadded (113,920 bytes in the release)."""
    return sum(
        INDEX.region_bytes(BLOCK_TOKENS // ratio, text.index_head_dim)
        + MAIN.region_bytes(BLOCK_TOKENS // ratio, text.head_dim)
        for ratio in (text.compress_ratios[layer] for layer in text.kv_source_layer_ids)
    )


def bytes_per_token(text: TextConfig) -> float:
    """Context cache of one token (890 in the release)."""
    return block_bytes(text) / BLOCK_TOKENS


def page_bytes(text: TextConfig, *, draft: bool) -> int:
    """One window page (363,264 bytes in the release with its drafts)."""
    layers = text.num_hidden_layers + (text.draft_layers if draft else 0)
    return WINDOW.region_bytes(PAGE_TOKENS, text.head_dim) * layers


def compressor_bytes(text: TextConfig, backtracking: int) -> int:
    """Pending (gate, value) pairs, fp32, of the last ratio + backtracking - 1 tokens."""
    ratios = [text.compress_ratios[layer] for layer in text.kv_source_layer_ids]
    members = sum(ratio + backtracking - 1 for ratio in ratios if ratio > 1)
    return members * 2 * text.head_dim * 4


def slot_bytes(text: TextConfig, *, drafts: int) -> int:
    """One slot: compressor members, last n-gram ids (int32), draft ids and confidences."""
    ngram = text.engram_max_ngram_size - 1 if text.engram_layer_ids else 0
    return compressor_bytes(text, drafts + 1) + 4 * ngram + drafts * (4 + 4)


def cache_size(
    config: ModelConfig, *, batch: int, length: int, draft: bool = False, rows_per_step: int = 1
) -> CacheSize:
    """The caches of `batch` sequences of `length` tokens.

    draft: the draft module is used. rows_per_step: 1 + drafts are always provided for; a prompt
    chunk in flight needs as many window pages as its rows ask for.
    """
    text = config.text
    drafts = text.dspark_block_size if draft else 0
    pages = -(-(text.sliding_window + rows_per_step + drafts) // PAGE_TOKENS) + 1
    return CacheSize(
        batch=batch,
        length=length,
        drafts=drafts,
        rows_per_step=rows_per_step,
        block_bytes=block_bytes(text),
        page_bytes=page_bytes(text, draft=draft),
        slot_bytes=slot_bytes(text, drafts=drafts),
        pages_per_sequence=pages,
    )


def vendor_sequence_bytes(text: TextConfig) -> int:
    """Per-sequence state as rings, the layout of section 5.6 (3,128,928 bytes in the release)."""
    layers = text.num_hidden_layers + text.draft_layers
    ring = (text.sliding_window + VENDOR_BACKTRACKING) * WINDOW.entry_bytes(text.head_dim)
    total = layers * ring + compressor_bytes(text, VENDOR_BACKTRACKING)
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
