"""The paged cache: geometry, memory, and what each sequence holds of it."""

from deepinfer.cache.allocator import BlockAllocator, OutOfBlocksError
from deepinfer.cache.layout import BLOCK_TOKENS, PAGE_TOKENS, CacheLayout
from deepinfer.cache.pools import CachePools
from deepinfer.cache.sequence import CacheManager, SequenceCache

__all__ = [
    "BLOCK_TOKENS",
    "PAGE_TOKENS",
    "BlockAllocator",
    "CacheLayout",
    "CacheManager",
    "CachePools",
    "OutOfBlocksError",
    "SequenceCache",
]
