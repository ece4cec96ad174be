"""Cases of `compress`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Batch,
    CompressorState,
    Fact,
)
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.batches import (
    Geometry,
    PagedCache,
    real_rows,
    single_rows,
)
from deepinfer.conformance.cases.cache import LENGTHS
from deepinfer.conformance.oracles import compressor
from deepinfer.conformance.suite import (
    Arguments,
    OperatorSuite,
    Outputs,
)
from deepinfer.conformance.tolerances import (
    EXACT,
    Tolerance,
    float_tolerance,
)
from deepinfer.conformance.values import make
from deepinfer.formats.dtypes import COMPUTE_DTYPES


class Compress(OperatorSuite):
    """`compress`: merges tokens to groups across steps; a step writes only its own to the ring."""

    operator = "compress"
    row_arguments = ("values", "gates")
    row_outputs = ("latents", "entries")

    def grid(self, tier: Tier) -> Iterator[Case]:
        def case(ratio: int, width: int, layout: str, length: int, **more: Any) -> Case:
            facts: dict[str, Fact] = {"ratio": ratio, "width": width}
            facts |= {"layout": layout, "length": length}
            return Case.of("compress", facts, **more)

        for layout in ("padded", "drafts", "ragged", "decode", "prompt", "chunk", "none"):
            for dtype in COMPUTE_DTYPES:
                for ratio in (2, 1):
                    edge = "batch" if layout != "none" else "empty"
                    yield case(ratio, 64, layout, 21, dtype=dtype, edge=edge)
        for ratio in (1, 2):
            for dtype in COMPUTE_DTYPES:
                for values in ("large", "extreme", "ties", "zeros", "nan_row"):
                    yield case(ratio, 32, "ragged", 18, dtype=dtype, values=values)
            for length in (*LENGTHS, 6, 7, 8):
                yield case(ratio, 32, "decode", length, edge="ratio")
                yield case(ratio, 32, "chunk", length, edge="ratio")
                yield case(ratio, 32, "drafts", length, edge="ring")
            yield case(ratio, 48, "prompt", 260, edge="long")
            yield case(ratio, 512, "padded", 40, edge="released")
        if tier.includes(Tier.FULL):
            for seed in range(5):
                more = {"edge": "released", "seed": seed, "tier": Tier.FULL}
                yield case(2, 512, "padded", 700, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        dtype, ratio, width = COMPUTE_DTYPES[case.dtype], case.size("ratio"), case.size("width")
        geometry = Geometry(width=width, ratio=ratio) if width % 32 == 0 else Geometry(ratio=ratio)
        layout, length = str(case.fact("layout")), case.size("length")
        cache = PagedCache(geometry, layout, length, generator, dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        slots = len(cache.state.members)
        shape = cache.rows, width
        state = torch.randn(slots, geometry.ring, 2, width, generator=generator).to(wide)
        values = make(case.values, shape, generator, wide if ratio > 1 else dtype)
        return {
            "values": values,
            "gates": make(case.values, shape, generator, wide) if ratio > 1 else None,
            "state": CompressorState(state) if ratio > 1 else None,
            "batch": cache.batch,
            "ratio": ratio,
            "dtype": dtype,
        }

    def outputs(self, case: Case, result: Any, arguments: Arguments) -> Outputs:
        """The latent of a row that completes no group has no meaning, so it counts as zero."""
        entries = result.entries
        found = {
            "latents": result.latents.masked_fill((entries < 0).unsqueeze(-1), 0),
            "entries": entries,
        }
        if arguments["state"] is not None:
            found["members"] = arguments["state"].members[1:]
        return found

    def tolerance(self, case: Case, output: str) -> Tolerance:
        if output == "latents" and case.fact("ratio") != 1:
            return float_tolerance(case.dtype, elementwise=True)
        return EXACT

    def written(self, case: Case, arguments: Arguments) -> dict[str, Tensor]:
        if arguments["state"] is None:
            return {}
        return {"state.members": ring_places(arguments["state"], arguments["batch"])}

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        state = arguments["state"]
        members = None if state is None else state.members
        latents, entries, left = compressor.compress(
            arguments["values"],
            arguments["gates"],
            members,
            arguments["batch"],
            arguments["ratio"],
        )
        found = {"latents": latents.to(arguments["dtype"]), "entries": entries}
        if left is not None:
            found["members"] = left[1:]
        return found

    def num_rows(self, case: Case, arguments: Arguments) -> int:
        return real_rows(arguments["batch"])

    def take(self, case: Case, arguments: Arguments, rows: Tensor) -> Arguments:
        """Each row as a step of its own, whose ring also has the rows before it in its sequence."""
        batch: Batch = arguments["batch"]
        taken = {**arguments, "values": arguments["values"][rows]}
        if arguments["state"] is not None:
            members = arguments["state"].members
            rings = [torch.zeros_like(members[0])]
            for row in rows.tolist():
                owner = int(batch.sequence[row])
                ring = members[int(batch.slots[owner])].clone()
                for before in range(int(batch.query_start[owner]), row):
                    place = int(batch.positions[before]) % len(ring)
                    ring[place, 0] = arguments["values"][before]
                    ring[place, 1] = arguments["gates"][before]
                rings.append(ring)
            taken |= {"state": CompressorState(torch.stack(rings))}
            taken |= {"gates": arguments["gates"][rows]}
        return {**taken, "batch": single_rows(batch, rows)}


def ring_places(state: CompressorState, batch: Batch) -> Tensor:
    """Mask of the members that a step may change: the places of its rows, and slot 0."""
    mask = torch.zeros(state.members.shape, dtype=torch.bool)
    mask[0] = True
    for owner, position in zip(batch.sequence.tolist(), batch.positions.tolist(), strict=True):
        if owner >= 0:
            mask[int(batch.slots[owner]), position % state.ring] = True
    return mask


COMPRESSOR: tuple[OperatorSuite, ...] = (Compress(),)
