"""Cases of `store` and `load` of entries, and of `copy`, `export` and `import_` of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from deepinfer.backend import Pool, Region
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.batches import (
    Geometry,
    PagedCache,
    real_rows,
    write,
)
from deepinfer.conformance.oracles import formats, pages
from deepinfer.conformance.suite import Arguments, OperatorSuite, Outputs
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES

FORMATS = ("window", "main", "index")
LENGTHS = (1, 2, 3, 4, 5, 15, 16, 17, 33)
"""Lengths around a ratio of 2, a page of 4, and a block and a tile of 16."""
LAYOUT_NAMES = ("padded", "ragged", "drafts", "chunk", "prompt", "none")
RELEASED = {"window": 512, "main": 512, "index": 128}


def cache_of(case: Case, generator: torch.Generator, values: str = "normal") -> PagedCache:
    """The pools and the batch of a case with facts format, width, ratio, layout and length."""
    width = case.size("width")
    large = case.fact("pages") == "released"
    geometry = Geometry(
        width=width,
        index_width=width,
        ratio=case.size("ratio"),
        block_tokens=128 if large else 16,
        page_tokens=16 if large else 4,
        window=128 if large else 8,
    )
    layout, length = str(case.fact("layout")), case.size("length")
    return PagedCache(geometry, layout, length, generator, COMPUTE_DTYPES[case.dtype], values)


def entry_grid(operator: str, tier: Tier, values: tuple[str, ...]) -> Iterator[Case]:
    """The grid of operators that write or read entries of one format."""

    def case(kind: str, width: int, layout: str, length: int, **more: Any) -> Case:
        facts = {
            "format": kind,
            "width": width,
            "ratio": more.pop("ratio", 1),
            "layout": layout,
            "length": length,
            "pages": more.pop("pages", "small"),
        }
        return Case.of(operator, facts, **more)

    for layout in LAYOUT_NAMES:
        for kind in FORMATS:
            edge = "batch" if layout != "none" else "empty"
            yield case(kind, 64, layout, 21, edge=edge, ratio=1 if kind == "window" else 2)
    for kind in FORMATS:
        for length in LENGTHS:
            yield case(kind, 32, "decode", length, edge="page")
            yield case(kind, 32, "prompt", length, dtype="fp32", edge="block")
        for name in values:
            yield case(kind, 64, "ragged", 19, values=name)
            yield case(kind, 64, "prompt", 17, values=name, dtype="fp32")
        yield case(kind, 64, "prompt", 17, dtype="fp64")
        yield case(kind, 128, "padded", 40, dtype="fp32", edge="width")
        yield case(kind, RELEASED[kind], "ragged", 145, edge="released", pages="released")
    for kind in ("main", "index"):
        for length in (1, 2, 3, 31, 32, 33):
            yield case(kind, 64, "ragged", length, edge="ratio", ratio=2)
        yield case(kind, 64, "drafts", 33, edge="ratio", ratio=2)
    if tier.includes(Tier.FULL):
        for kind in FORMATS:
            for seed in range(3):
                for length in (127, 128, 129, 700):
                    yield case(
                        kind,
                        RELEASED[kind],
                        "padded",
                        length,
                        edge="released",
                        pages="released",
                        seed=seed,
                        tier=Tier.FULL,
                    )


class Store(OperatorSuite):
    """`store`: the bytes of the entries change, and no other byte."""

    operator = "store"

    def grid(self, tier: Tier) -> Iterator[Case]:
        values = (
            "large",
            "extreme",
            "saturated",
            "subnormal",
            "ties",
            "zeros",
            "nan_row",
            "infinite",
        )
        return entry_grid("store", tier, values)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        cache = cache_of(case, generator)
        region = cache.region(str(case.fact("format")))
        entries = cache.entries(region.format.name)
        shape = cache.rows, region.width
        return {
            "values": make(case.values, shape, generator, COMPUTE_DTYPES[case.dtype]),
            "region": region,
            "entries": entries,
            "batch": cache.batch,
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {"pool": arguments["region"].pool.data[1:]}

    def written(self, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        batch = arguments["batch"]
        mask = pages.touched(arguments["region"], batch, batch.sequence, arguments["entries"])
        return {"region.pool.data": mask}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        region: Region = arguments["region"]
        batch = arguments["batch"]
        data = region.pool.data.clone()
        codes, scales = formats.encode(arguments["values"], region.format.scheme)
        target = Region(
            Pool(data, region.pool.image_bytes),
            region.group,
            region.offset,
            region.format,
            region.width,
            region.entries,
        )
        write(target, batch, batch.sequence, arguments["entries"], codes, scales)
        return {"pool": data[1:]}


class Load(OperatorSuite):
    """`load`: exact values of entries; zeros for entry -1 and where a sequence lacks the entry.

    The value class "codes" has all codes with all scales whose products are normal bf16 numbers.
    """

    operator = "load"
    row_arguments = ("sequence", "entries")

    def grid(self, tier: Tier) -> Iterator[Case]:
        values = ("codes", "ties", "nan_row", "saturated", "subnormal", "zeros")
        return entry_grid("load", tier, values)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        codes = case.values == "codes"
        cache = cache_of(case, generator, "normal" if codes else case.values)
        region = cache.region(str(case.fact("format")))
        batch = cache.batch
        own = cache.entries(region.format.name)[: real_rows(batch)]
        sequence = batch.sequence[: len(own)]
        if codes:
            valid = own >= 0
            _random_codes(cache, region, sequence[valid], own[valid], generator)
        order = torch.randperm(len(own), generator=generator)
        none = torch.full((min(2, len(own)),), -1)
        return {
            "region": region,
            "sequence": torch.cat((sequence[order], sequence[: len(none)], sequence[:1], none[:1])),
            "entries": torch.cat((own[order], none, own[:1], torch.zeros_like(none[:1]))),
            "batch": batch,
            "dtype": COMPUTE_DTYPES[case.dtype],
        }

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        taken = {name: arguments[name][rows] for name in self.row_arguments}
        return {**arguments, **taken}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        values = pages.read(*(arguments[n] for n in ("region", "batch", "sequence", "entries")))
        return {"out": values.to(arguments["dtype"])}


def _random_codes(
    cache: PagedCache,
    region: Region,
    sequence: Tensor,
    entries: Tensor,
    generator: torch.Generator,
) -> None:
    """Fill entries with random codes, and scales for which all products are normal in bf16."""
    codes, scales = pages.byte_columns(region, entries)
    low, high = (1, 128) if region.format.name == "main" else (20, 240)
    write(
        region,
        cache.batch,
        sequence,
        entries,
        torch.randint(0, 256, codes.shape, generator=generator).to(torch.uint8),
        torch.randint(low, high, scales.shape, generator=generator).to(torch.uint8),
    )


class _Blocks(OperatorSuite):
    """Operators on whole blocks. Facts: number of blocks, bytes of the image of a block."""

    edges: ClassVar[dict[str, int]] = {"empty": 0, "one": 1, "tile": 16, "tile+1": 17, "long": 61}

    def grid(self, tier: Tier) -> Iterator[Case]:
        for edge, blocks in self.edges.items():
            for image in (1, 36, 4096):
                facts = {"blocks": blocks, "image": image, "padding": 0 if image == 36 else 32}
                yield Case.of(self.operator, facts, edge=edge)
        if tier.includes(Tier.FULL):
            for image in (113920, 363264):
                facts = {"blocks": 9, "image": image, "padding": 128}
                yield Case.of(self.operator, facts, edge="released", tier=Tier.FULL)

    def ranges(self, case: Case) -> dict[str, tuple[int, int]]:
        return {"rows": (1, max(1, case.size("blocks")))}

    def pool(self, case: Case, generator: torch.Generator) -> tuple[Pool, Tensor]:
        """A pool of random bytes, and all its blocks but 0 in random order."""
        count, image = 2 * case.size("blocks") + 3, case.size("image")
        shape = count, image + case.size("padding")
        data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        return Pool(data, image), torch.randperm(count - 1, generator=generator) + 1


class Copy(_Blocks):
    """`copy`: images of blocks are copied to other blocks; a source may have several targets."""

    operator = "copy"

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        pool, order = self.pool(case, generator)
        count = case.size("blocks")
        sources = order[count : 2 * count].clone()
        if count > 2:
            sources[-1] = sources[0]
        return {"pool": pool, "pairs": torch.stack((sources, order[:count]), 1)}

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        pool: Pool = arguments["pool"]
        return {"images": pool.data[:, : pool.image_bytes]}

    def written(self, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        mask = torch.zeros(arguments["pool"].data.shape, dtype=torch.bool)
        mask[arguments["pairs"][:, 1]] = True
        return {"pool.data": mask}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        pool: Pool = arguments["pool"]
        images = [pool.data[b, : pool.image_bytes] for b in range(pool.num_blocks)]
        before = list(images)
        for source, target in arguments["pairs"].tolist():
            images[target] = before[source]
        return {"images": torch.stack(images)}


class Export(_Blocks):
    """`export`: canonical images of blocks; a block may be asked for twice."""

    operator = "export"
    row_arguments = ("blocks",)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        pool, order = self.pool(case, generator)
        blocks = order[: case.size("blocks")].clone()
        if len(blocks) > 2:
            blocks[-1] = blocks[0]
        return {"pool": pool, "blocks": blocks}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        pool: Pool = arguments["pool"]
        images = [pool.data[b, : pool.image_bytes] for b in arguments["blocks"].tolist()]
        return {"out": torch.stack(images) if images else pool.data[:0, : pool.image_bytes]}


class Import(_Blocks):
    """`import_`: images are written into blocks; the bytes behind them and other blocks stay."""

    operator = "import_"

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        pool, order = self.pool(case, generator)
        count = case.size("blocks")
        shape = count, pool.image_bytes
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        return {"pool": pool, "blocks": order[:count], "images": images}

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {"pool": arguments["pool"].data}

    def written(self, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        pool: Pool = arguments["pool"]
        mask = torch.zeros(pool.data.shape, dtype=torch.bool)
        mask[arguments["blocks"], : pool.image_bytes] = True
        return {"pool.data": mask}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        pool: Pool = arguments["pool"]
        data = pool.data.clone()
        for block, image in zip(arguments["blocks"].tolist(), arguments["images"], strict=True):
            data[block, : pool.image_bytes] = image
        return {"pool": data}


CACHE: tuple[OperatorSuite, ...] = (Store(), Load(), Copy(), Export(), Import())
