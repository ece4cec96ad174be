"""`Sizes`: how many blocks, pages and slots an engine has, and the lengths that follow from them.

Window pages and slots are made as many as the running sequences need. Context blocks get the memory
that is left beside them, the weights and the tensors of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.backend import Memory
from deepinfer.cache import CacheLayout
from deepinfer.config import ModelConfig
from deepinfer.engine.options import EngineOptions
from deepinfer.errors import UsageError

MIB = 2**20
UNKNOWN_MEMORY = 4 * 2**30
"""Bytes for the cache on a device that cannot say how much memory it has."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of an engine's cache, and the limits that follow from them.

    max_model_len: the most tokens of a sequence. limited_by_memory: the options do not give it, and
    the cache holds fewer tokens than the model has positions. max_num_batched_tokens: the most rows
    of a step. num_blocks, num_pages, num_slots: without the dummies. cache_bytes: all pools, the
    dummies included.
    """

    max_model_len: int
    max_num_batched_tokens: int
    num_blocks: int
    num_pages: int
    num_slots: int
    cache_bytes: int
    limited_by_memory: bool = False

    def __str__(self) -> str:
        why = ", all that the cache holds" if self.limited_by_memory else ""
        return (
            f"max_model_len {self.max_model_len}{why}; {self.max_num_batched_tokens} rows a step; "
            f"cache of {self.num_blocks} blocks, {self.num_pages} window pages and "
            f"{self.num_slots} slots, {self.cache_bytes / MIB:.1f} MiB"
        )


def plan_sizes(
    options: EngineOptions,
    config: ModelConfig,
    layout: CacheLayout,
    memory: Memory | None,
    *,
    slots_ratio: float = 1.0,
    element_bytes: int = 4,
) -> Sizes:
    """Compute the sizes of a cache for a device that holds the weights already.

    memory: free and total bytes now; None where the device cannot say. slots_ratio: slots per
    running sequence (DEEPINFER_NUM_STATE_SLOTS_RATIO). element_bytes: bytes of an element of a
    slot. UsageError, with the numbers, where not even one sequence fits.
    """
    length, rows = options.model_len(config), options.batched_tokens(config)
    slots = int(options.max_num_seqs * slots_ratio)
    if slots < 1:
        raise UsageError(
            f"DEEPINFER_NUM_STATE_SLOTS_RATIO is {slots_ratio:g} and max_num_seqs "
            f"{options.max_num_seqs}, which leaves no slot for a sequence; raise one of them"
        )
    running = min(slots, options.max_num_seqs)
    in_flight = min(rows, length)
    pages = running * (layout.window_pages_for(1) + 1) + -(-rows // layout.page_tokens)
    pages = min(pages, running * layout.window_pages_for(in_flight))
    fixed = (
        (pages + 1) * layout.page_bytes
        + (slots + 1) * layout.slot_bytes(element_bytes)
        + layout.block_bytes
    )
    wanted = max(running * layout.blocks_for(length), 1)
    blocks = wanted
    if options.num_blocks is not None:
        blocks = options.num_blocks
    elif layout.block_bytes:
        left = _budget(options, config, memory, rows, length)
        blocks = min(wanted, (left - fixed) // layout.block_bytes)
        needed = layout.blocks_for(length) if options.max_model_len is not None else 1
        if blocks < needed:
            raise UsageError(
                f"the cache may take {left / MIB:.0f} MiB, of which {pages} window pages and "
                f"{slots} slots need {fixed / MIB:.0f} MiB; one sequence of {length} tokens needs "
                f"{needed * layout.block_bytes / MIB:.1f} MiB more. Lower max_num_seqs, "
                "max_model_len or max_num_batched_tokens, or raise gpu_memory_utilization"
            )
    held = blocks * layout.block_tokens if layout.block_bytes else length
    limited = options.max_model_len is None and held < length
    return Sizes(
        max_model_len=held if limited else length,
        max_num_batched_tokens=rows,
        num_blocks=blocks,
        num_pages=pages,
        num_slots=slots,
        cache_bytes=fixed + blocks * layout.block_bytes,
        limited_by_memory=limited,
    )


def _budget(
    options: EngineOptions, config: ModelConfig, memory: Memory | None, rows: int, length: int
) -> int:
    """Bytes that all pools together may take."""
    if memory is None:
        return UNKNOWN_MEMORY
    used = memory.total - memory.free
    share = int(memory.total * options.gpu_memory_utilization)
    return share - used - step_bytes(config, rows, options.max_num_seqs, length)


def step_bytes(config: ModelConfig, rows: int, sequences: int, length: int) -> int:
    """An upper estimate of the bytes of one step's tensors: all float32, two of each at a time."""
    text = config.text
    ratios = [ratio for ratio in text.compress_ratios if ratio]
    widths = (
        2 * text.hc_mult * text.hidden_size
        + 2 * text.num_attention_heads * text.head_dim
        + text.num_experts_per_tok * (text.hidden_size + 2 * text.moe_intermediate_size)
        + text.index_n_heads * text.index_head_dim
        + (length // min(ratios) if ratios else 0)
    )
    logits = min(rows, sequences) * text.vocab_size
    return 2 * 4 * (rows * widths + logits)
