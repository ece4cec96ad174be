"""Cases of `select`, the step of index queries, scores and selection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.backend import Activation, CallSpec, Fact, IndexerWeights
from deepinfer.backend.resolution import Operators
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.batches import Geometry, PagedCache, real_rows, single_rows
from deepinfer.conformance.cases.matrices import matrix
from deepinfer.conformance.cases.selection import candidate_blocks, rows_of, visible_entries
from deepinfer.conformance.cases.specs import THETA
from deepinfer.conformance.oracles import attention, compressor, formats, selection
from deepinfer.conformance.suite import (
    Arguments,
    OperatorSuite,
    Outputs,
    numerics_of,
)
from deepinfer.conformance.tolerances import EXACT, SELECTED_BF16, SELECTED_WIDE, Tolerance
from deepinfer.conformance.values import make
from deepinfer.formats import Quantised, Scheme, quantise
from deepinfer.formats.dtypes import COMPUTE_DTYPES
from deepinfer.model import inverse_frequencies


class Select(OperatorSuite):
    """`select`: entries and candidate blocks of each row. With class "zeros" all scores tie."""

    operator = "select"
    row_outputs = ("indices", "candidates")
    nan_argument = "a.values"

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(role: str, layout: str, length: int, **more: Any) -> Case:
            large = more.pop("large", False)
            facts = {
                "heads": 32 if large else 8,
                "width": 128 if large else 32,
                "rotated": 64 if large else 16,
                "top_k": more.pop("top_k", 8),
                "block": 8 if large else 4,
                "blocks": (2048 if large else 3) if role == "source" else 0,
                "candidates": role == "reindex",
                "ratio": 2 if role == "encoder" else 1,
                "rank": 96,
                "hidden": more.pop("hidden", 64),
                "weight": more.pop("weight", "fp8"),
                "layout": layout,
                "length": length,
            }
            return Case.of("select", facts, **more)

        roles = ("source", "reindex", "encoder")
        modes: list[dict[str, Any]] = [
            {"dtype": dtype, "numerics": numerics}
            for dtype in ("bf16", "fp32")
            for numerics in ("infer", "ref")
        ]
        for role in roles:
            for mode in modes:
                for values in ("zeros", "nan_row", "large"):
                    yield case(role, "ragged", 29, values=values, **mode)
        for layout in ("padded", "drafts", "decode", "none"):
            for mode in modes:
                for role in roles:
                    edge = "batch" if layout != "none" else "empty"
                    yield case(role, layout, 37, edge=edge, **mode)
        for role in roles:
            for numerics in ("ref", "infer"):
                for dtype in ("bf16", "fp32"):
                    same: dict[str, Any] = {"dtype": dtype, "numerics": numerics}
                    for length in (1, 2, 3, 8, 9, 16, 17):
                        yield case(role, "ragged", length, edge="ratio", **same)
                yield case(role, "ragged", 29, weight="bf16", edge="stored", numerics=numerics)
                yield case(
                    role, "decode", 600, large=True, top_k=512, edge="released", numerics=numerics
                )
            if tier.includes(Tier.FULL):
                more: dict[str, Any] = {"edge": "released", "tier": Tier.FULL}
                yield case(role, "drafts", 20001, large=True, top_k=512, numerics="infer", **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        dtype, numerics = COMPUTE_DTYPES[case.dtype], numerics_of(case)
        heads, width, ratio = (case.size(name) for name in ("heads", "width", "ratio"))
        rank, hidden, kind = case.size("rank"), case.size("hidden"), str(case.fact("weight"))
        geometry = Geometry(index_width=width, ratio=ratio)
        layout, length = str(case.fact("layout")), case.size("length")
        cache = PagedCache(geometry, layout, length, generator, dtype)
        scheme = numerics.activation_scheme

        def activation(width: int) -> Activation:
            x = make(case.values, (cache.rows, width), generator, dtype)
            return Activation(x) if scheme is None else Activation(x, quantise(x, scheme), scheme)

        candidates = None
        if case.fact("candidates"):
            visible = visible_entries(cache.batch, ratio)
            candidates = candidate_blocks(visible, 3, case.size("block"), generator)
        return {
            "latent": activation(rank),
            "a": activation(hidden),
            "weights": IndexerWeights(
                wq_b=matrix(heads * width, rank, kind, generator),  # type: ignore[arg-type]
                weights_proj=matrix(heads, hidden, "bf16", generator),  # type: ignore[arg-type]
                frequencies=inverse_frequencies(THETA, case.size("rotated")),
                num_heads=heads,
                head_dim=width,
                top_k=case.size("top_k"),
                ratio=ratio,
                candidate_block=case.size("block"),
                candidate_blocks=case.size("blocks"),
            ),
            "keys": cache.index,
            "candidates": candidates,
            "batch": cache.batch,
            "numerics": numerics,
        }

    def facts_of(self, case: Case, call: CallSpec) -> dict[str, Fact]:
        """Facts of a call, without those that are None.

        A layer without candidates has no block size; the case keeps its own, which is not used.
        """
        facts = super().facts_of(case, call)
        return {name: value for name, value in facts.items() if value is not None}

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        count = real_rows(arguments["batch"])
        found = {"indices": result.indices[:count]}
        if result.candidates is not None:
            found["candidates"] = result.candidates[:count]
        return found

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if case.values == "zeros" or (output == "candidates" and not case.size("blocks")):
            return EXACT
        return SELECTED_BF16 if case.dtype == "bf16" else SELECTED_WIDE

    def scores(self, case: Case, arguments: Arguments, truth: Operators) -> Outputs:
        """The index scores of the reference, by which another selection is judged.

        Entries outside of the candidate blocks have -inf. Candidates are scored by block, where the
        block of the last visible entry has +inf.
        """
        seen: list[Tensor] = []

        def tap(operator: str, _: tuple[Any, ...], result: Any) -> None:
            if operator == "index_scores":
                seen.append(result)

        self.run(truth.tapped(tap), arguments)
        batch, size = arguments["batch"], case.size("block")
        scores, count = seen[0].double(), -(-seen[0].shape[1] // size)
        padded = functional.pad(scores, (0, -scores.shape[1] % size), value=float("-inf"))
        blocks = padded.unflatten(1, (count, size)).amax(-1)  # type: ignore[no-untyped-call]
        last = (visible_entries(batch, case.size("ratio")) - 1) // size
        blocks[torch.arange(count) == last.unsqueeze(-1)] = float("inf")
        candidates = arguments["candidates"]
        if candidates is not None:
            owner = torch.arange(scores.shape[1]) // size
            inside = (owner.view(1, -1, 1) == candidates.unsqueeze(1)).any(-1)
            scores = scores.masked_fill(~inside, float("-inf"))
        rows = real_rows(batch)
        return {"indices": scores[:rows], "candidates": blocks[:rows]}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        weights, batch, numerics = (arguments[n] for n in ("weights", "batch", "numerics"))
        a: Activation = arguments["a"]
        latent: Activation = arguments["latent"]
        dtype, count = a.dtype, batch.num_rows
        consumed = latent.values.double()
        if latent.quantised is not None and case.fact("weight") == "fp8":
            consumed = formats.decode(*latent.quantised, Scheme.FP8_BLOCK32)
        queries = compressor.rounded(consumed @ attention.weight(weights.wq_b).T, dtype)
        queries = queries.view(count, weights.num_heads, weights.head_dim)
        queries = compressor.rope(queries, batch.positions, weights.frequencies, dtype)
        codes, scales = formats.encode(queries.to(dtype).flatten(0, 1), Scheme.MXFP4)
        shape = count, weights.num_heads, -1
        head_weights = a.values.double() @ attention.weight(weights.weights_proj).T
        visible = visible_entries(batch, weights.ratio)
        scores = selection.index_scores(
            Quantised(
                codes.reshape(*shape[:2], weights.head_dim // 2),
                scales.reshape(*shape[:2], weights.head_dim // 32),
            ),
            compressor.rounded(head_weights, dtype).to(dtype),
            weights.scale,
            arguments["keys"],
            visible,
            batch.max_context // weights.ratio,
            batch,
            numerics,
        )
        size, rows = weights.candidate_block, real_rows(batch)
        candidates = arguments["candidates"]
        found = {"indices": selection.top(scores, visible, weights.top_k, candidates, size)[:rows]}
        if weights.candidate_blocks:
            best = selection.best_blocks(scores, visible, size, weights.candidate_blocks)
            found["candidates"] = best[:rows]
        elif candidates is not None:
            found["candidates"] = candidates[:rows]
        return found

    def num_rows(self, case: Case, arguments: Arguments) -> int:
        return real_rows(arguments["batch"])

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        candidates = arguments["candidates"]
        return {
            **arguments,
            "latent": rows_of(arguments["latent"], rows),
            "a": rows_of(arguments["a"], rows),
            "candidates": None if candidates is None else candidates[rows],
            "batch": single_rows(arguments["batch"], rows),
        }


SELECT: tuple[OperatorSuite, ...] = (Select(),)
