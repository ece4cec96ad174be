"""Cache entries: the bytes of one cached position and where they lie in a block.

A block holds a fixed number of entries of one format in one region. `interleaved` regions store
each entry's data followed by its scales; `sectioned` regions store the data of all entries, then
the scales of all entries. Source: model specification, sections 5.2 to 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from deepinfer.errors import UsageError
from deepinfer.formats.quantise import Quantised, Scheme, dequantise, quantise


class Offsets(NamedTuple):
    """Byte offsets of entries from the start of their region, int64 [T] each."""

    data: Tensor
    scale: Tensor


@dataclass(frozen=True)
class EntryFormat:
    """A block scheme and the layout of its bytes. Widths are channels per entry."""

    name: str
    scheme: Scheme
    layout: Literal["interleaved", "sectioned"]

    def data_bytes(self, width: int) -> int:
        """Bytes of one entry's codes."""
        return self._whole_groups(width) // self.scheme.codes_per_byte

    def scale_bytes(self, width: int) -> int:
        """Bytes of one entry's scales."""
        return self._whole_groups(width) // self.scheme.group_size

    def entry_bytes(self, width: int) -> int:
        """Bytes of one entry: codes and scales."""
        return self.data_bytes(width) + self.scale_bytes(width)

    def region_bytes(self, entries_per_block: int, width: int) -> int:
        """Bytes of one block's region, without padding behind it."""
        return entries_per_block * self.entry_bytes(width)

    def encode(self, values: Tensor) -> Quantised:
        """Bytes of `values` [T, width]: codes [T, data_bytes], scales [T, scale_bytes], uint8."""
        return quantise(values, self.scheme)

    def decode(self, data: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """Values [T, width] in `dtype` of the bytes of `encode`."""
        return dequantise(data, scales, self.scheme, dtype)

    def offsets(self, entry_in_block: Tensor, entries_per_block: int, width: int) -> Offsets:
        """Where the entries numbered `entry_in_block` (integers [T], 0 .. entries_per_block - 1,
        not checked) start within the region: a data offset and a scale offset for each.
        """
        entry = entry_in_block.long()
        data, scale = self.data_bytes(width), self.scale_bytes(width)
        if self.layout == "interleaved":
            start = entry * (data + scale)
            return Offsets(start, start + data)
        return Offsets(entry * data, entry * scale + entries_per_block * data)

    def _whole_groups(self, width: int) -> int:
        if width <= 0 or width % self.scheme.group_size:
            raise UsageError(
                f"a {self.name} entry of {width} channels; the width must be a positive multiple "
                f"of the group size {self.scheme.group_size} of {self.scheme.value}"
            )
        return width


@dataclass(frozen=True)
class PlainFormat(EntryFormat):
    """Unquantised entries: bf16, in the byte order of the machine, without scales.

    For comparison with the published bytes, on the reference only; never part of an exported image.
    scheme: of the entries that it stands in for, whose rule on widths it keeps.
    """

    def data_bytes(self, width: int) -> int:
        """Two bytes a channel."""
        return 2 * self._whole_groups(width)

    def scale_bytes(self, width: int) -> int:
        """None."""
        return 0

    def encode(self, values: Tensor) -> Quantised:
        """`values` [T, width] rounded to bf16: uint8 [T, 2 * width], and scales [T, 0]."""
        codes = values.to(torch.bfloat16).contiguous().view(torch.uint8)
        return Quantised(codes, codes.new_empty((*codes.shape[:-1], 0)))

    def decode(self, data: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        """The rounded values in `dtype`."""
        return data.contiguous().view(torch.bfloat16).to(dtype)


WINDOW = EntryFormat("window", Scheme.FP8_BLOCK32, "interleaved")  # 528 bytes for 512 channels
MAIN = EntryFormat("main", Scheme.NVFP4, "interleaved")  # 288 bytes for 512 channels
INDEX = EntryFormat("index", Scheme.MXFP4, "sectioned")  # 68 bytes for 128 channels
MAIN_BF16 = PlainFormat("main-bf16", Scheme.NVFP4, "interleaved")  # 1,024 bytes for 512 channels
INDEX_BF16 = PlainFormat("index-bf16", Scheme.MXFP4, "interleaved")  # 256 bytes for 128 channels
