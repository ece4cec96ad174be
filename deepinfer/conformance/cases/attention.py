"""Cases of `attend`, sparse attention over window and selected entries, and `attend_output`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Batch, OutputWeights, Selection, WindowSpan
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.batches import Geometry, PagedCache, real_rows, single_rows
from deepinfer.conformance.cases.matrices import matrix
from deepinfer.conformance.cases.selection import visible_entries
from deepinfer.conformance.cases.specs import THETA
from deepinfer.conformance.oracles import attention
from deepinfer.conformance.suite import (
    Arguments,
    OperatorSuite,
    Outputs,
    numerics_of,
)
from deepinfer.conformance.tolerances import (
    ATTENDED,
    FP32_SUM,
    FP64_SUM,
    PROJECTED,
    PROJECTED_FP8,
    Tolerance,
)
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES
from deepinfer.model import inverse_frequencies

SINKS = {
    "normal": None,
    "high": 60.0,
    "highest": 1e30,
    "low": -60.0,
    "lowest": -1e30,
    "none": float("-inf"),
}


def attended_case(operator: str, window: int, selected: int, **more: Any) -> Case:
    """A case of attention. ratio 0: a window layer, without selected entries.

    sink: a name of SINKS. keys: "all": rows have window and selected entries; "window": no row has
    selected entries; "main": every other row has an empty window; "none": no row has selected
    entries, and every other row has an empty window, so no key at all.
    """
    facts = {
        "heads": more.pop("heads", 3),
        "head_dim": more.pop("head_dim", 32),
        "window": window,
        "selected": selected,
        "ratio": more.pop("ratio", 1 if selected else 0),
        "sink": more.pop("sink", "normal"),
        "keys": more.pop("keys", "all"),
        "layout": more.pop("layout", "ragged"),
        "length": more.pop("length", 21),
    }
    for name in ("groups", "rank", "hidden", "rotated", "weight"):
        if name in more:
            facts[name] = more.pop(name)
    return Case.of(operator, facts, **more)


def attention_inputs(case: Case, generator: torch.Generator) -> Arguments:
    """The arguments of `attend`. The value class "nan_entry" puts NaN into each region."""
    dtype, ratio, window = COMPUTE_DTYPES[case.dtype], case.size("ratio"), case.size("window")
    heads, width = case.size("heads"), case.size("head_dim")
    large = window >= 128
    geometry = Geometry(
        width=width,
        ratio=max(1, ratio),
        window=window,
        block_tokens=128 if large else 16,
        page_tokens=16 if large else 4,
    )
    layout, length = str(case.fact("layout")), case.size("length")
    nan = case.values == "nan_entry"
    content = "nan_row" if nan else "ties" if case.values == "ties" else "normal"
    cache = PagedCache(geometry, layout, length, generator, dtype, content)
    values = "normal" if nan else case.values
    sink = SINKS[str(case.fact("sink"))]
    selection = None
    if ratio:
        selection = Selection(_selected(case, cache.batch, generator))
    return {
        "queries": make(values, (cache.rows, heads, width), generator, dtype),
        "window": cache.window,
        "span": _span(case, cache.batch),
        "main": cache.main if ratio else None,
        "selection": selection,
        "sink": torch.randn(heads, generator=generator)
        if sink is None
        else torch.full((heads,), sink),
        "scale": float(width**-0.5),
        "batch": cache.batch,
    }


def _span(case: Case, batch: Batch) -> WindowSpan:
    """The window of each row; the rows of a draft block all see up to its end."""
    window = case.size("window")
    first = (batch.positions - window + 1).clamp(min=0)
    last = batch.positions.clone()
    if case.fact("layout") == "drafts":
        last = batch.context_lengths[batch.sequence] - 1
    if case.fact("keys") in ("main", "none"):
        last[::2] = first[::2] - 1
    width = int((last - first + 1).max()) if len(last) else window
    return WindowSpan(first, last, max(window, width))


def _selected(case: Case, batch: Batch, generator: torch.Generator) -> Tensor:
    """Random visible entries of each row [T, selected], ascending, filled with -1."""
    indices = torch.full((batch.num_rows, case.size("selected")), -1, dtype=torch.int32)
    if case.fact("keys") in ("window", "none"):
        return indices
    for row, count in enumerate(visible_entries(batch, case.size("ratio")).tolist()):
        if batch.sequence[row] >= 0:
            kept = torch.randperm(count, generator=generator)[: indices.shape[1]].sort()[0]
            indices[row, : len(kept)] = kept.int()
    return indices


class Attend(OperatorSuite):
    """`attend`: attention with a sink over window positions and selected entries."""

    operator = "attend"
    nan_argument = "queries"

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(window: int, selected: int, **more: Any) -> Case:
            return attended_case("attend", window, selected, **more)

        for layout in ("padded", "drafts", "decode", "prompt", "chunk", "none"):
            for dtype in ("fp32", "bf16"):
                for selected in (6, 0):
                    edge = "batch" if layout != "none" else "empty"
                    yield case(8, selected, layout=layout, edge=edge, dtype=dtype)
        for dtype in ("bf16", "fp32"):
            for selected in (0, 6):
                same: dict[str, Any] = {"dtype": dtype}
                for length in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33):
                    yield case(8, selected, length=length, edge="window", **same)
                for window in (1, 5, 15, 16, 17):
                    yield case(window, selected, length=19, edge="window", **same)
                for sink in list(SINKS)[1:]:
                    yield case(8, selected, sink=sink, edge="sink", **same)
                    yield case(8, selected, sink=sink, keys="none", edge="no keys", **same)
                for values in ("large", "extreme", "ties", "zeros", "nan_entry"):
                    yield case(8, selected, values=values, head_dim=64, **same)
            for keys in ("window", "main"):
                yield case(8, 6, keys=keys, edge="no keys", **same)
            for length in (1, 2, 3, 16, 17, 31, 32, 33):
                yield case(8, 6, ratio=2, length=length, edge="ratio", **same)
            for selected in (1, 15, 16, 17, 24, 40):
                yield case(16, selected, length=33, edge="selected", **same)
            yield case(16, 16, heads=4, head_dim=64, length=61, edge="golden", **same)
            large: dict[str, Any] = {"head_dim": 512, "edge": "released", **same}
            for length in (127, 128, 129):
                yield case(128, 0, heads=2, layout="decode", length=length, **large)
            yield case(128, 512, heads=64, layout="decode", length=700, **large)
        yield case(8, 6, dtype="fp64")
        yield case(8, 0, dtype="fp64")
        if tier.includes(Tier.FULL):
            for ratio in (1, 2):
                large = {"heads": 64, "head_dim": 512, "edge": "released", "tier": Tier.FULL}
                yield case(128, 512, layout="drafts", length=1500, ratio=ratio, **large)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        return attention_inputs(case, generator)

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {"out": result[: real_rows(arguments["batch"])]}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return {"bf16": ATTENDED, "fp32": FP32_SUM, "fp64": FP64_SUM}[case.dtype]

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        heads = oracle_heads(arguments)[: real_rows(arguments["batch"])]
        return {"out": heads.to(arguments["queries"].dtype)}

    def num_rows(self, case: Case, arguments: Arguments) -> int:
        return real_rows(arguments["batch"])

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        return taken_rows(arguments, rows)


def oracle_heads(arguments: Arguments) -> Tensor:
    """The expected heads [T, A, D] float64 for arguments of `attend`."""
    names = ("queries", "window", "span", "main", "sink", "scale", "batch")
    chosen = arguments["selection"]
    indices = None if chosen is None else chosen.indices
    return attention.attend(indices=indices, **{name: arguments[name] for name in names})


def taken_rows(arguments: Arguments, rows: Tensor) -> Arguments:
    """Arguments with each of `rows` as a sequence of its own, as long as the row sees."""
    span: WindowSpan = arguments["span"]
    chosen: Selection | None = arguments["selection"]
    batch = single_rows(arguments["batch"], rows)
    seen = torch.maximum(span.last[rows] + 1, batch.context_lengths)
    return {
        **arguments,
        "queries": arguments["queries"][rows],
        "span": WindowSpan(span.first[rows], span.last[rows], span.width),
        "selection": None if chosen is None else Selection(chosen.indices[rows]),
        "batch": replace(batch, context_lengths=seen),
    }


class AttendOutput(OperatorSuite):
    """`attend_output`: attention, the inverse rotation, the grouped and the full projection."""

    operator = "attend_output"
    nan_argument = "queries"

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(window: int, selected: int, **more: Any) -> Case:
            facts = {"groups": 2, "rank": 32, "hidden": 48, "rotated": 16, "weight": "fp8"}
            facts |= {"heads": 4}
            return attended_case("attend_output", window, selected, **{**facts, **more})

        modes: list[dict[str, Any]] = [
            {"dtype": dtype, "numerics": numerics}
            for dtype in ("bf16", "fp32")
            for numerics in ("infer", "ref")
        ]
        for layout in ("padded", "drafts", "decode", "none"):
            for mode in modes:
                for selected in (6, 0):
                    edge = "batch" if layout != "none" else "empty"
                    yield case(8, selected, layout=layout, edge=edge, **mode)
        for numerics in ("ref", "infer"):
            for dtype in ("bf16", "fp32"):
                same: dict[str, Any] = {"dtype": dtype, "numerics": numerics}
                for selected in (0, 6):
                    for length in (1, 7, 8, 9, 16, 17):
                        yield case(8, selected, length=length, edge="window", **same)
                    for sink in ("high", "lowest"):
                        yield case(8, selected, sink=sink, keys="none", edge="no keys", **same)
                    for values in ("large", "zeros", "nan_entry"):
                        yield case(8, selected, values=values, **same)
                yield case(8, 6, ratio=2, length=19, edge="ratio", **same)
                golden = {"head_dim": 64, "rank": 64, "hidden": 128}
                yield case(16, 16, length=61, edge="golden", **golden, **same)
            yield case(8, 6, weight="bf16", edge="stored", numerics=numerics)
            yield case(8, 6, dtype="fp64", numerics=numerics)
            if tier.includes(Tier.FULL):
                large: dict[str, Any] = {
                    "heads": 64,
                    "head_dim": 512,
                    "groups": 8,
                    "rank": 1024,
                    "hidden": 5120,
                }
                large |= {"rotated": 64, "layout": "decode", "length": 700}
                yield case(128, 512, edge="released", numerics=numerics, tier=Tier.FULL, **large)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        inner = attention_inputs(case, generator)
        groups, rank, hidden = (case.size(name) for name in ("groups", "rank", "hidden"))
        inputs = case.size("heads") * case.size("head_dim") // groups
        kind = str(case.fact("weight"))
        weights = OutputWeights(
            wo_a=matrix(groups * rank, inputs, kind, generator),  # type: ignore[arg-type]
            wo_b=matrix(hidden, groups * rank, kind, generator),  # type: ignore[arg-type]
            frequencies=inverse_frequencies(THETA, case.size("rotated")),
            groups=groups,
        )
        return {**inner, "weights": weights, "numerics": numerics_of(case)}

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return {"out": result[: real_rows(arguments["batch"])]}

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if case.dtype == "fp64":
            return FP64_SUM
        if case.numerics == "infer" and case.fact("weight") == "fp8":
            return PROJECTED_FP8
        return PROJECTED if case.dtype == "bf16" else FP32_SUM

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        weights, batch = arguments["weights"], arguments["batch"]
        scheme = arguments["numerics"].activation_scheme
        out = attention.attend_output(
            oracle_heads(arguments),
            batch.positions,
            weights.frequencies,
            attention.weight(weights.wo_a),
            attention.weight(weights.wo_b),
            weights.groups,
            scheme if case.fact("weight") == "fp8" else None,
            arguments["queries"].dtype,
        )
        return {"out": out[: real_rows(batch)]}

    def num_rows(self, case: Case, arguments: Arguments) -> int:
        return real_rows(arguments["batch"])

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        return taken_rows(arguments, rows)


ATTENTION: tuple[OperatorSuite, ...] = (Attend(), AttendOutput())
