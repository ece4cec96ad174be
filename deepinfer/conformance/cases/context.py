"""Cases of `norm_rope_store` and `update_context`, which store main entries and index keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    Batch,
    CompressorWeights,
    Region,
)
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.batches import (
    Geometry,
    PagedCache,
    real_rows,
    single_rows,
    whole_sequences,
)
from deepinfer.conformance.cases.compressor import ring_places
from deepinfer.conformance.cases.matrices import matrix
from deepinfer.conformance.cases.specs import THETA
from deepinfer.conformance.oracles import compressor, formats, pages
from deepinfer.conformance.suite import (
    Arguments,
    OperatorSuite,
    Outputs,
    numerics_of,
)
from deepinfer.conformance.tolerances import (
    STORED_CODES,
    STORED_ROW,
    Tolerance,
    float_tolerance,
)
from deepinfer.conformance.values import make
from deepinfer.formats import quantise
from deepinfer.formats.dtypes import COMPUTE_DTYPES
from deepinfer.model import inverse_frequencies

EPS = 1e-6


def stored(region: Region, batch: Batch, entries: Tensor, name: str) -> Outputs:
    """Values of the stored entries as two outputs.

    One has a row for each row of the batch, with zeros where nothing is stored, and shows where an
    error is. The other, NAME_codes, has all values in one row and shows how many codes differ.
    """
    count = real_rows(batch)
    values = pages.read(region, batch, batch.sequence[:count], entries[:count])
    return {name: values, f"{name}_codes": values[entries[:count].cpu() >= 0].reshape(1, -1)}


def stored_tolerance(output: str) -> Tolerance:
    """The tolerance of an output of `stored`."""
    return STORED_CODES if output.endswith("_codes") else STORED_ROW


class NormRopeStore(OperatorSuite):
    """`norm_rope_store`: index keys are normalised, rotated and stored."""

    operator = "norm_rope_store"
    row_outputs = ("index",)
    nan_argument = "x"

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(width: int, rotated: int, layout: str, length: int, **more: Any) -> Case:
            facts = {
                "format": "index",
                "width": width,
                "rotated": rotated,
                "ratio": more.pop("ratio", 1),
                "layout": layout,
                "length": length,
            }
            return Case.of("norm_rope_store", facts, **more)

        modes: list[dict[str, Any]] = [
            {"dtype": dtype, "numerics": numerics}
            for dtype in ("bf16", "fp32")
            for numerics in ("ref", "infer")
        ]
        for layout in ("padded", "drafts", "prompt", "none"):
            for mode in modes:
                edge = "batch" if layout != "none" else "empty"
                yield case(32, 16, layout, 21, edge=edge, **mode)
        for numerics in ("ref", "infer"):
            for dtype in ("bf16", "fp32"):
                same = {"dtype": dtype, "numerics": numerics}
                for length in (1, 2, 3, 15, 16, 17, 33):
                    yield case(32, 16, "ragged", length, edge="ratio", ratio=2, **same)
                for values in ("extreme", "zeros", "nan_row", "ties"):
                    yield case(64, 64, "ragged", 19, values=values, **same)
                yield case(128, 64, "ragged", 40, edge="released", **same)
                yield case(128, 64, "decode", 5000, edge="long", **same)
            yield case(32, 16, "ragged", 17, dtype="fp64", numerics=numerics)
            if tier.includes(Tier.FULL):
                more = {"numerics": numerics, "edge": "released", "tier": Tier.FULL}
                yield case(128, 64, "padded", 700, ratio=2, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        width, ratio, dtype = case.size("width"), case.size("ratio"), COMPUTE_DTYPES[case.dtype]
        geometry = Geometry(index_width=width, ratio=ratio)
        layout, length = str(case.fact("layout")), case.size("length")
        cache = PagedCache(geometry, layout, length, generator, dtype)
        entries = cache.entries("index")
        return {
            "x": make(case.values, (cache.rows, width), generator, dtype),
            "weight": 1 + 0.1 * torch.randn(width, generator=generator),
            "eps": EPS,
            "positions": entries.clamp(min=0) * ratio,
            "frequencies": inverse_frequencies(THETA, case.size("rotated")),
            "region": cache.index,
            "entries": entries,
            "batch": cache.batch,
            "numerics": numerics_of(case),
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        return stored(arguments["region"], arguments["batch"], arguments["entries"], "index")

    def tolerance(self, case: Case, output: str) -> Tolerance:
        return stored_tolerance(output)

    def written(self, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        batch = arguments["batch"]
        mask = pages.touched(arguments["region"], batch, batch.sequence, arguments["entries"])
        return {"region.pool.data": mask}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        count, entries = real_rows(arguments["batch"]), arguments["entries"]
        x: Tensor = arguments["x"]
        normed = compressor.rms_norm(x, arguments["weight"], EPS, x.dtype)
        positions, frequencies = arguments["positions"], arguments["frequencies"]
        turned = compressor.rope(normed, positions, frequencies, x.dtype)
        return _as_stored(turned[:count], entries[:count], arguments["region"], x.dtype, "index")

    def num_rows(self, case: Case, arguments: Arguments) -> int:
        return real_rows(arguments["batch"])

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        taken = {name: arguments[name][rows] for name in ("x", "positions", "entries")}
        return {**arguments, **taken, "batch": single_rows(arguments["batch"], rows)}


def _as_stored(
    rows: Tensor, entries: Tensor, region: Region, dtype: torch.dtype, name: str
) -> Outputs:
    """The outputs of `stored` if these float64 rows are stored correctly."""
    scheme = region.format.scheme
    values = formats.decode(*formats.encode(rows.to(dtype), scheme), scheme)
    complete = entries >= 0
    values = torch.where(complete.unsqueeze(-1), values, 0.0)
    return {name: values, f"{name}_codes": values[complete].reshape(1, -1)}


class UpdateContext(OperatorSuite):
    """`update_context`: entries and index keys of a KV-source layer, and incomplete groups."""

    operator = "update_context"
    row_outputs = ("main", "index")

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(ratio: int, layout: str, length: int, **more: Any) -> Case:
            large = more.pop("large", False)
            facts = {
                "ratio": ratio,
                "head_dim": 512 if large else 64,
                "index_dim": 128 if large else 32,
                "hidden": more.pop("hidden", 96),
                "rotated": 64 if large else 16,
                "weight": more.pop("weight", "bf16"),
                "layout": layout,
                "length": length,
            }
            return Case.of("update_context", facts, **more)

        modes: list[dict[str, Any]] = [
            {"dtype": dtype, "numerics": numerics}
            for dtype in ("bf16", "fp32")
            for numerics in ("ref", "infer")
        ]
        for layout in ("padded", "drafts", "decode", "none"):
            for mode in modes:
                for ratio in (2, 1):
                    edge = "batch" if layout != "none" else "empty"
                    yield case(ratio, layout, 21, edge=edge, **mode)
        for ratio in (1, 2):
            for numerics in ("ref", "infer"):
                for dtype in ("bf16", "fp32"):
                    same: dict[str, Any] = {"dtype": dtype, "numerics": numerics}
                    for length in (1, 2, 3, 16, 17):
                        yield case(ratio, "ragged", length, edge="ratio", **same)
                    for values in ("large", "zeros", "nan_row"):
                        yield case(ratio, "ragged", 18, values=values, **same)
                yield case(ratio, "ragged", 17, weight="fp32", edge="stored", numerics=numerics)
                yield case(ratio, "ragged", 9, large=True, edge="released", numerics=numerics)
                yield case(ratio, "ragged", 17, dtype="fp64", numerics=numerics)
            if tier.includes(Tier.FULL):
                more = {"edge": "released", "numerics": "infer", "tier": Tier.FULL}
                yield case(ratio, "padded", 130, large=True, hidden=5120, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        ratio, dtype, numerics = case.size("ratio"), COMPUTE_DTYPES[case.dtype], numerics_of(case)
        width, index, hidden = (case.size(name) for name in ("head_dim", "index_dim", "hidden"))
        layout, length = str(case.fact("layout")), case.size("length")
        geometry = Geometry(width=width, index_width=index, ratio=ratio)
        cache = PagedCache(geometry, layout, length, generator, dtype)
        kind = str(case.fact("weight"))
        x = make(case.values, (cache.rows, hidden), generator, dtype)
        scheme = numerics.activation_scheme
        return {
            "a": Activation(x) if scheme is None else Activation(x, quantise(x, scheme), scheme),
            "weights": CompressorWeights(
                wkv=matrix(width, hidden, kind, generator),  # type: ignore[arg-type]
                wgate=matrix(width, hidden, kind, generator) if ratio > 1 else None,  # type: ignore[arg-type]
                norm=1 + 0.1 * torch.randn(width, generator=generator),
                wk=matrix(index, width, kind, generator),  # type: ignore[arg-type]
                k_norm=1 + 0.1 * torch.randn(index, generator=generator),
                frequencies=inverse_frequencies(THETA, case.size("rotated")),
                ratio=ratio,
                eps=EPS,
            ),
            "state": cache.state if ratio > 1 else None,
            "main": cache.main,
            "index": cache.index,
            "batch": cache.batch,
            "numerics": numerics,
        }

    def entries(self, arguments: Arguments) -> Tensor:
        """The entry that each row completes, -1 for none."""
        batch, ratio = arguments["batch"], arguments["weights"].ratio
        complete = (batch.sequence >= 0) & ((batch.positions + 1) % ratio == 0)
        return torch.where(complete, batch.positions // ratio, -1)

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        batch, entries = arguments["batch"], self.entries(arguments)
        found = stored(arguments["main"], batch, entries, "main")
        found |= stored(arguments["index"], batch, entries, "index")
        if arguments["state"] is not None:
            found["members"] = arguments["state"].members[1:].flatten(0, 1)
        return found

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if output == "members":
            return float_tolerance("fp64" if case.dtype == "fp64" else "fp32")
        return stored_tolerance(output)

    def written(self, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        batch, entries = arguments["batch"], self.entries(arguments)
        masks = [
            pages.touched(arguments[name], batch, batch.sequence, entries)
            for name in ("main", "index")
        ]
        both = masks[0] | masks[1]
        allowed = {"main.pool.data": both, "index.pool.data": both}
        if arguments["state"] is not None:
            allowed["state.members"] = ring_places(arguments["state"], batch)
        return allowed

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        weights, batch = arguments["weights"], arguments["batch"]
        x, dtype, ratio = arguments["a"].values, arguments["a"].dtype, weights.ratio
        narrow = dtype == torch.bfloat16

        def product(source: Any, values: Tensor, out: torch.dtype) -> Tensor:
            stored_weight = source.weight.read().double()
            if narrow and out == torch.bfloat16:
                stored_weight = formats.bf16(stored_weight)
            return compressor.rounded(values.double() @ stored_weight.T, out)

        wide = torch.float64 if dtype == torch.float64 else torch.float32
        state, gates, members = arguments["state"], None, None
        if state is not None:
            gates, members = product(weights.wgate, x, wide), state.members
        values = product(weights.wkv, x, dtype if state is None else wide)
        latents, entries, left = compressor.compress(values, gates, members, batch, ratio)
        positions = entries.clamp(min=0) * ratio
        normed = compressor.rms_norm(compressor.rounded(latents, dtype), weights.norm, EPS, dtype)
        main = compressor.rope(normed, positions, weights.frequencies, dtype)
        keys = compressor.rms_norm(product(weights.wk, normed, dtype), weights.k_norm, EPS, dtype)
        keys = compressor.rope(keys, positions, weights.frequencies, dtype)
        count = real_rows(batch)
        found: Outputs = {}
        for name, rows in (("main", main), ("index", keys)):
            region = arguments[name]
            found |= _as_stored(rows[:count], entries[:count], region, dtype, name)
        if left is not None:
            found["members"] = left[1:].flatten(0, 1)
        return found

    def samples(self, case: Case, arguments: Arguments) -> Iterator[tuple[str, Tensor]]:
        """Whole sequences, because the group of a row may have begun in the row before."""
        batch: Batch = arguments["batch"]
        count = batch.num_sequences
        if real_rows(batch):
            yield "the last sequence alone", whole_sequences(batch, [count - 1])[0]
            yield "sequences reversed", whole_sequences(batch, range(count - 1, -1, -1))[0]

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        order = list(dict.fromkeys(arguments["batch"].sequence[rows].tolist()))
        a: Activation = arguments["a"]
        quantised = a.quantised
        if quantised is not None:
            quantised = type(quantised)(*(part[rows] for part in quantised))
        batch = whole_sequences(arguments["batch"], order)[1]
        return {
            **arguments,
            "a": replace(a, values=a.values[rows], quantised=quantised),
            "batch": batch,
        }


CONTEXT: tuple[OperatorSuite, ...] = (NormRopeStore(), UpdateContext())
