"""Backends of installed toy plugins: a right one, and one with a form of its own for entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Batch, Region
from deepinfer.formats import Quantised
from deepinfer.formats.entries import EntryFormat
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants.cache import reformatted


class Good(ReferenceBackend):
    """A backend of its own class that is right."""


class _Swapped(EntryFormat):
    def encode(self, values: Tensor) -> Quantised:
        codes, scales = super().encode(values)
        return Quantised((codes & 15) << 4 | codes >> 4, scales)

    def decode(self, data: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        return super().decode((data & 15) << 4 | data >> 4, scales, dtype)


class Swapped(ReferenceBackend):
    """FP4 entries have their even channels in the high nibble, written so and read so."""

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        super().store(values, self._own(region), entries, batch)

    def load(self, region: Region, *rest: Any) -> Tensor:
        return super().load(self._own(region), *rest)

    @staticmethod
    def _own(region: Region) -> Region:
        return region if region.format.name == "window" else reformatted(region, _Swapped)
