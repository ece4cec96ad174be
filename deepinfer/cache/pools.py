"""`CachePools`: the memory of the cache on one device, and the regions that layers address."""

from __future__ import annotations

import torch

from deepinfer.backend import CompressorState, Contract, Pool, Region
from deepinfer.backend.batch import CONTEXT, WINDOW
from deepinfer.cache.copies import Copies
from deepinfer.cache.layout import CacheLayout
from deepinfer.formats import WINDOW as WINDOW_FORMAT


class CachePools:
    """Pools of a model: context blocks, window pages, and per-sequence slots.

    num_blocks, num_pages and num_slots count usable ones; number 0 of each is added as the dummy.
    state_dtype: float32, or float64 in float64 compute.
    """

    def __init__(
        self,
        layout: CacheLayout,
        num_blocks: int,
        num_pages: int,
        num_slots: int,
        device: torch.device,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.layout = layout
        self.num_slots = num_slots + 1
        canonical = layout.cache_dtype == "fp4"
        self.context = _pool(num_blocks + 1, layout.block_bytes, device, canonical)
        self.window = _pool(num_pages + 1, layout.page_bytes, device)
        self._compressors = {
            layer: CompressorState(
                torch.zeros(
                    (self.num_slots, ring, 2, layout.text.head_dim),
                    dtype=state_dtype,
                    device=device,
                )
            )
            for layer, ring in layout.compressor_rings.items()
        }
        self._main = {}
        self._index = {}
        for layer in layout.context_layers.values():
            self._main[layer.layer] = Region(
                self.context,
                CONTEXT,
                layer.main_offset,
                layout.main_format,
                layout.text.head_dim,
                layer.entries,
            )
            self._index[layer.layer] = Region(
                self.context,
                CONTEXT,
                layer.index_offset,
                layout.index_format,
                layout.text.index_head_dim,
                layer.entries,
            )
        self._window = [
            Region(
                self.window,
                WINDOW,
                place * layout.window_layer_bytes,
                WINDOW_FORMAT,
                layout.text.head_dim,
                layout.page_tokens,
            )
            for place in range(layout.window_layers)
        ]

    def main(self, layer: int) -> Region:
        """Main entries of a KV-source layer."""
        return self._main[layer]

    def index(self, layer: int) -> Region:
        """Index keys of a KV-source layer."""
        return self._index[layer]

    def window_region(self, place: int) -> Region:
        """Window entries of a layer; draft stage i has place num_hidden_layers + i."""
        return self._window[place]

    def compressor(self, layer: int) -> CompressorState | None:
        """Pending members of a KV-source layer's compressor; None for ratio 1."""
        return self._compressors.get(layer)

    def copy(self, operators: Contract, copies: Copies) -> None:
        """Carry out the copies that a step needs before it runs."""
        for pool, pairs in ((self.context, copies.blocks), (self.window, copies.pages)):
            if pairs:
                operators.copy(pool, operators.tensor(pairs, torch.int64))
        if copies.slots:
            pairs_of_slots = operators.tensor(copies.slots, torch.int64)
            for state in self._compressors.values():
                state.members[pairs_of_slots[:, 1]] = state.members[pairs_of_slots[:, 0]]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's slot."""
        return sum(state.members[0].nbytes for state in self._compressors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [self.context.data, self.window.data]
        tensors += [state.members for state in self._compressors.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _pool(num_blocks: int, image_bytes: int, device: torch.device, canonical: bool = True) -> Pool:
    data = torch.zeros((num_blocks, image_bytes), dtype=torch.uint8, device=device)
    return Pool(data, image_bytes, canonical)
