"""Cases of `index_scores`, `top` and `best_blocks`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, Batch, CallSpec, Fact
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.batches import Geometry, PagedCache, real_rows, single_rows
from deepinfer.conformance.oracles import selection
from deepinfer.conformance.suite import (
    Arguments,
    OperatorSuite,
    Outputs,
    numerics_of,
)
from deepinfer.conformance.tolerances import (
    EXACT,
    INDEX_SPREAD,
    INDEX_SUM,
    Tolerance,
    float_tolerance,
)
from deepinfer.conformance.values import make
from deepinfer.formats import Scheme, quantise
from deepinfer.formats.dtypes import COMPUTE_DTYPES

COLUMNS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 127, 128, 129)
"""Numbers of columns around blocks of 4 and 8 and tiles of 16 and 128."""


def rows_of(a: Activation, rows: Tensor) -> Activation:
    """Some rows of an activation, of both halves."""
    quantised = a.quantised
    if quantised is not None:
        quantised = type(quantised)(*(part[rows] for part in quantised))
    return replace(a, values=a.values[rows], quantised=quantised)


class IndexScores(OperatorSuite):
    """`index_scores`: scores of visible entries, rounded by numeric mode; -inf for the others.

    With class "spread" the groups of queries and keys have scales from 2^-20 to 2^20.
    """

    operator = "index_scores"
    nan_argument = "weights"

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(layout: str, length: int, columns: int | None = None, **more: Any) -> Case:
            ratio = more.pop("ratio", 1)
            facts = {
                "heads": more.pop("heads", 4),
                "width": more.pop("width", 32),
                "ratio": ratio,
                "seen": more.pop("seen", "causal"),
                "layout": layout,
                "length": length,
                "columns": length // ratio if columns is None else columns,
            }
            return Case.of("index_scores", facts, **more)

        modes: list[dict[str, Any]] = [
            {"dtype": dtype, "numerics": numerics}
            for dtype in ("bf16", "fp32")
            for numerics in ("ref", "infer")
        ]
        for layout in ("padded", "drafts", "decode", "prompt", "none"):
            for mode in modes:
                yield case(layout, 21, edge="batch" if layout != "none" else "empty", **mode)
        for numerics in ("ref", "infer"):
            for dtype in ("bf16", "fp32"):
                same: dict[str, Any] = {"dtype": dtype, "numerics": numerics}
                for length in (1, 2, 3, 15, 16, 17, 31, 32, 33):
                    yield case("ragged", length, ratio=2, edge="ratio", **same)
                for columns in (0, 5, 19, 40, 127, 128, 129):
                    yield case("ragged", 19, columns, edge="columns", **same)
                for seen in ("none", "all"):
                    yield case("ragged", 19, seen=seen, edge="visible", **same)
                for heads in (1, 3, 5, 8):
                    yield case("ragged", 17, heads=heads, edge="heads", **same)
                for values in ("large", "ties", "zeros", "nan_row", "subnormal", "spread"):
                    yield case("ragged", 19, width=64, heads=8, values=values, **same)
                yield case("ragged", 40, heads=32, width=128, edge="released", **same)
            yield case("chunk", 300, edge="long", numerics=numerics)
            yield case("ragged", 17, heads=8, dtype="fp64", numerics=numerics)
            if tier.includes(Tier.FULL):
                for seed in range(3):
                    more: dict[str, Any] = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                    more |= {"heads": 32, "width": 128, "numerics": numerics}
                    yield case("decode", 20001, ratio=2, **more)
                    yield case("drafts", 2049, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        dtype, heads, width = COMPUTE_DTYPES[case.dtype], case.size("heads"), case.size("width")
        geometry = Geometry(index_width=width, ratio=case.size("ratio"))
        values = "normal" if case.values == "spread" else case.values
        layout, length = str(case.fact("layout")), case.size("length")
        cache = PagedCache(geometry, layout, length, generator, dtype, values)
        batch = cache.batch
        queries = make(values, (cache.rows, heads, width), generator, dtype)
        quantised = quantise(queries, Scheme.MXFP4)
        if case.values == "spread":
            spread = torch.randint(107, 148, quantised.scales.shape, generator=generator)
            quantised = quantised._replace(scales=spread.to(torch.uint8))
        weights = make(
            "zeros" if values == "zeros" else "normal", (cache.rows, heads), generator, dtype
        )
        return {
            "queries": Activation(queries, quantised, Scheme.MXFP4),
            "weights": weights,
            "scale": float((heads * width) ** -0.5),
            "keys": cache.index,
            "visible": visible_entries(batch, case.size("ratio"), str(case.fact("seen"))),
            "width": case.size("columns"),
            "batch": batch,
            "numerics": numerics_of(case),
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {"out": result[: real_rows(arguments["batch"])]}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if case.dtype != "bf16":
            return float_tolerance(case.dtype)
        if case.values == "spread":
            return INDEX_SPREAD
        return INDEX_SUM if case.numerics == "ref" else EXACT

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        scores = selection.index_scores(
            arguments["queries"].quantised,
            **{name: value for name, value in arguments.items() if name != "queries"},
        )
        return {"out": scores[: real_rows(arguments["batch"])]}

    def num_rows(self, case: Case, arguments: Arguments) -> int:
        return real_rows(arguments["batch"])

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        return {
            **arguments,
            "queries": rows_of(arguments["queries"], rows),
            "weights": arguments["weights"][rows],
            "visible": arguments["visible"][rows],
            "batch": single_rows(arguments["batch"], rows),
        }


def visible_entries(batch: Batch, ratio: int, seen: str = "causal") -> Tensor:
    """The number of entries that each row sees, up to its position or to its sequence's end."""
    if seen == "none":
        return torch.zeros_like(batch.positions)
    if seen == "causal":
        return torch.div(batch.positions + 1, ratio, rounding_mode="floor")
    lengths = [0 if owner < 0 else int(batch.context_lengths[owner]) for owner in batch.sequence]
    return torch.tensor(lengths, dtype=torch.int64) // ratio


class _Chosen(OperatorSuite):
    """Selection by given scores. Facts: rows, columns, and how many are kept."""

    nan_argument = "scores"

    def scored(self, case: Case, generator: torch.Generator) -> Arguments:
        """Scores [rows, columns] of a class, and how many each row sees: 0, 1, all or any."""
        rows, columns = case.size("rows"), case.size("columns")
        visible = torch.randint(0, columns + 1, (rows,), generator=generator)
        for row, count in enumerate((columns, 0, min(1, columns), columns)):
            if row < rows:
                visible[row] = count
        scores = _scores(case.values, rows, columns, generator).to(COMPUTE_DTYPES[case.dtype])
        return {"scores": scores, "visible": visible}

    def ranges(self, case: Case) -> dict[str, tuple[int, int]]:
        """The ranges of rows and length of the call."""
        return {
            "rows": (1, max(1, case.size("rows"))),
            "length": (1, max(1, case.size("columns"))),
        }


def _scores(values: str, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Scores of a class. "nan_row": a tenth of them is NaN. "equal": one value for each row."""
    shape = rows, columns
    if values == "equal":
        return torch.randn(rows, 1, generator=generator).expand(shape).clone()
    if values != "nan_row":
        return make(values, shape, generator, torch.float32)
    hit = torch.rand(shape, generator=generator) < 0.1
    return torch.where(hit, float("nan"), torch.randn(shape, generator=generator))


CHOSEN_VALUES = ("ties", "equal", "zeros", "nan_row", "infinite", "masked", "large", "extreme")


class Top(_Chosen):
    """`top`: the best entries of each row, of equal ones the lower, never NaN or -inf."""

    operator = "top"
    row_arguments = ("scores", "visible", "candidates")

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(rows: int, columns: int, k: int, candidates: int, **more: Any) -> Case:
            facts = {
                "rows": rows,
                "columns": columns,
                "top_k": k,
                "kept": candidates,
                "block": more.pop("block", 4),
                "beyond": more.pop("beyond", "masked"),
            }
            return Case.of("top", facts, **more)

        for dtype in ("bf16", "fp32"):
            for kept in (0, 3):
                same: dict[str, Any] = {"dtype": dtype}
                for rows, edge in (
                    (0, "empty"),
                    (1, "one"),
                    (15, "tile"),
                    (16, "tile"),
                    (17, "tile"),
                ):
                    yield case(rows, 40, 8, kept, edge=edge, **same)
                for columns in COLUMNS:
                    yield case(5, columns, 8, kept, edge="columns", **same)
                for values in CHOSEN_VALUES:
                    yield case(9, 61, 16, kept, values=values, **same)
                    yield case(9, 61, 16, kept, values=values, beyond="finite", **same)
                for k in (1, 15, 16, 17, 24, 39, 40, 41):
                    yield case(5, 40, k, kept, edge="k", **same)
            yield case(3, 5000, 512, 0, edge="released", dtype=dtype)
            yield case(3, 5000, 512, 300, block=8, edge="released", dtype=dtype)
            yield case(3, 5000, 512, 300, block=8, edge="released", dtype=dtype, values="ties")
        yield case(9, 61, 16, 3, dtype="fp64", values="ties")
        if tier.includes(Tier.FULL):
            for values in ("normal", "ties", "equal"):
                for kept in (0, 2048):
                    more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL}
                    yield case(4, 40001, 512, kept, block=8, values=values, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        arguments = self.scored(case, generator)
        scores, visible = arguments["scores"], arguments["visible"]
        columns = torch.arange(case.size("columns"))
        if case.fact("beyond") == "masked":
            scores.masked_fill_(columns >= visible.unsqueeze(-1), float("-inf"))
        kept = case.size("kept")
        size = 1 if case.fact("block") is None else case.size("block")
        return {
            **arguments,
            "k": case.size("top_k"),
            "candidates": candidate_blocks(visible, kept, size, generator) if kept else None,
            "size": size,
        }

    def facts_of(self, case: Case, call: CallSpec) -> dict[str, Fact]:
        kept = max(3, case.size("kept")) if call.fact("candidates") else 0
        return {**super().facts_of(case, call), "kept": kept}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": selection.top(**arguments)}


def candidate_blocks(visible: Tensor, kept: int, size: int, generator: torch.Generator) -> Tensor:
    """Some blocks [T, kept] with visible entries of each row, ascending, filled with -1."""
    found = torch.full((len(visible), kept), -1, dtype=torch.int32)
    for row, count in enumerate(visible.tolist()):
        blocks = -(-count // size)
        chosen = torch.randperm(blocks, generator=generator)[:kept].sort()[0]
        found[row, : len(chosen)] = chosen.int()
    return found


class BestBlocks(_Chosen):
    """`best_blocks`: the best blocks of each row, with that of the last visible entry."""

    operator = "best_blocks"
    row_arguments = ("scores", "visible")

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(rows: int, columns: int, block: int, blocks: int, **more: Any) -> Case:
            facts = {"rows": rows, "columns": columns, "block": block, "blocks": blocks}
            return Case.of("best_blocks", facts, **more)

        for dtype in ("bf16", "fp32"):
            for block, blocks in ((4, 8), (8, 4)):
                same: dict[str, Any] = {"dtype": dtype}
                for rows, edge in ((0, "empty"), (1, "one"), (16, "tile"), (17, "tile")):
                    yield case(rows, 61, block, blocks, edge=edge, **same)
                for columns in (*COLUMNS, 31, 32, 33):
                    yield case(5, columns, block, blocks, edge="columns", **same)
                for values in CHOSEN_VALUES:
                    yield case(9, 77, block, blocks, values=values, **same)
                yield case(7, 77, block, 1, edge="k", **same)
            for columns in (16384, 16385, 20003):
                yield case(3, columns, 8, 2048, edge="released", dtype=dtype)
            yield case(3, 20003, 8, 2048, edge="released", dtype=dtype, values="ties")
        yield case(9, 77, 4, 8, dtype="fp64", values="ties")
        if tier.includes(Tier.FULL):
            for block in (8, 16):
                for values in ("normal", "ties", "equal"):
                    more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL}
                    yield case(4, 70001, block, 2048, values=values, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        arguments = self.scored(case, generator)
        columns = torch.arange(case.size("columns"))
        invisible = columns >= arguments["visible"].unsqueeze(-1)
        arguments["scores"].masked_fill_(invisible, float("-inf"))
        return {**arguments, "size": case.size("block"), "k": case.size("blocks")}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        return {"out": selection.best_blocks(**arguments)}


SELECTION: tuple[OperatorSuite, ...] = (IndexScores(), Top(), BestBlocks())
