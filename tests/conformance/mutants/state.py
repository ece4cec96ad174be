"""Mutants whose fault only a history shows: each call is right, the state that it leaves is not.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepinfer.backend import Batch, Pool, Region
from tests.conformance.mutants.variant import Variant


class WrittenOnce(Variant, seen_at="stateful.rollback"):
    """An entry that was written is not written again: what a rejected draft left stays."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.regions: list[tuple[Region, set[tuple[int, int]]]] = []

    def store(self, values: Tensor, region: Region, entries: Tensor, batch: Batch) -> None:
        written = self._written(region)
        places = list(zip(batch.sequence.tolist(), entries.tolist(), strict=True))
        known = torch.tensor([place in written for place in places], dtype=torch.bool)
        written.update(places)
        super().store(values, region, torch.where(known, -1, entries), batch)

    def _written(self, region: Region) -> set[tuple[int, int]]:
        for own, written in self.regions:
            if own is region:
                return written
        self.regions.append((region, set()))
        return self.regions[-1][1]


class OwnImages(Variant, seen_at="stateful.moved"):
    """Images are in a layout that only the backend itself reads: each byte is one place on."""

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        return super().export(pool, blocks).roll(1, 1)

    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        super().import_(pool, blocks, images.roll(-1, 1))


class _Tie(NamedTuple):
    pool: Pool
    blocks: Tensor


class ImportStaysTied(Variant, seen_at="stateful.forked"):
    """Imported blocks and those they were exported from share what is written later."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.exported: list[tuple[Tensor, _Tie]] = []
        self.ties: list[tuple[_Tie, _Tie]] = []

    def export(self, pool: Pool, blocks: Tensor) -> Tensor:
        images = super().export(pool, blocks)
        self.exported.append((images.clone(), _Tie(pool, blocks)))
        return images

    def import_(self, pool: Pool, blocks: Tensor, images: Tensor) -> None:
        super().import_(pool, blocks, images)
        for image, source in self.exported:
            if torch.equal(image, images):
                self.ties.append((source, _Tie(pool, blocks)))

    def store(self, values: Tensor, region: Region, *rest: Any) -> None:
        super().store(values, region, *rest)
        for tie in self.ties:
            for here, there in (tie, tie[::-1]):
                if here.pool.data.data_ptr() == region.pool.data.data_ptr():
                    there.pool.data[there.blocks] = here.pool.data[here.blocks]
