"""Cases of `pack_experts`: the description of a pack, and slots exported and imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    Contract,
    ExpertSource,
    Fact,
    Group,
    Numerics,
    PackedExperts,
    Routing,
)
from deepinfer.backend.trace import Tracer
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.matrices import expert
from deepinfer.conformance.suite import (
    Arguments,
    Invalid,
    OperatorSuite,
    Outputs,
    generator_of,
)
from deepinfer.conformance.values import ShapesOnly
from deepinfer.conformance.world import World
from deepinfer.formats.dtypes import COMPUTE_DTYPES

KINDS = ("fp4", "bf16", "fp32")
ROWS = 2
"""The number of rows that are computed with a slot."""


class Published:
    """Wraps experts, so that the suite does not pack them before `run` does."""

    def __init__(self, experts: tuple[ExpertSource, ...]) -> None:
        self.experts = experts

    def stored(self) -> list[Tensor]:
        """Copies of all stored tensors of the experts."""
        return [
            part.read()
            for one in self.experts
            for matrix in (one.w1, one.w2, one.w3)
            for part in (matrix.weight, matrix.scale)
            if part is not None
        ]


class PackExperts(OperatorSuite):
    """`pack_experts`: a pack describes itself, and a slot computes the same in another place.

    The bytes of a pack are the backend's own, so they are not compared with the reference. The
    outputs are properties that must hold. moved: the slot whose bytes are imported into slot 0; all
    other slots must stay as they are.
    """

    operator = "pack_experts"
    first_call = "expert_mlp"

    def grid(self, tier: Tier) -> Iterator[Case]:
        for kind in KINDS:
            for count in (1, 2, 5):
                yield self._case(count, 64, 96, kind, edge="count")
            yield self._case(3, 128, 96, kind, edge="golden")
            yield self._case(3, 32, 32, kind, "fp32", edge="width")
        yield self._case(3, 64, 64, "fp4", values="powers")
        yield self._case(3, 64, 64, "fp4", values="saturated")
        yield self._case(384, 32, 32, "fp4", edge="count")
        if tier.includes(Tier.FULL):
            yield self._case(2, 5120, 2304, "fp4", edge="released", tier=Tier.FULL)

    def _case(
        self, experts: int, hidden: int, inner: int, kind: str, dtype: str = "bf16", **more: Any
    ) -> Case:
        facts: dict[str, Fact] = {
            "experts": experts,
            "hidden": hidden,
            "intermediate": inner,
            "weight": kind,
        }
        return Case.of("pack_experts", facts, dtype=dtype, **more)

    def inputs(self, case: Case, generator: torch.Generator) -> Arguments:
        hidden, inner, kind = case.size("hidden"), case.size("intermediate"), case.fact("weight")
        count = case.size("experts")
        experts = (expert(hidden, inner, str(kind), generator, case.values) for _ in range(count))
        x = torch.randn(ROWS, hidden, generator=generator).to(COMPUTE_DTYPES[case.dtype])
        return {"sources": Published(tuple(experts)), "x": x, "moved": count - 1}

    def trace(self, case: Case, tracer: Tracer) -> None:
        """Trace one computation; without values there are no bytes of slots to compare."""
        arguments = World(tracer).place(self.inputs(case, ShapesOnly()))
        packed = tracer.pack_experts(arguments["sources"].experts)
        self._computed(tracer, packed, 0, arguments["x"])

    def ranges(self, case: Case) -> dict[str, tuple[int, int]]:
        return {"rows": (ROWS, ROWS)}

    def run(self, operators: Contract, arguments: Arguments) -> Outputs:
        """Pack, export all slots, import one of them into slot 0, and look at all of them again."""
        published, x, moved = arguments["sources"], arguments["x"], arguments["moved"]
        stored = published.stored()
        packed = operators.pack_experts(published.experts)
        if "slot" in arguments:
            return {"out": packed.export_slot(arguments["slot"])}
        count = packed.num_slots
        before = [packed.export_slot(slot) for slot in range(count)]
        was = self._computed(operators, packed, moved, x)
        packed.import_slot(0, before[moved].clone())
        operators.synchronise()
        after = [packed.export_slot(slot) for slot in range(count)]
        now = self._computed(operators, packed, 0, x)
        others = [torch.equal(before[slot], after[slot]) for slot in range(1, count)]
        sizes = [packed.num_slots, packed.hidden, packed.intermediate]
        known = packed.kind == published.experts[0].w1.kind
        held = packed.nbytes + packed.mapped_bytes > 0
        bytes_of = [data.dtype == torch.uint8 and data.dim() == 1 for data in before]
        again = published.stored()
        flags = {
            "kind": known,
            "memory": held,
            "bytes": all(bytes_of) and len({len(data) for data in before}) == 1,
            "moved": torch.equal(after[0], before[moved]),
            "others": all(others),
            "computed": torch.equal(now, was),
            "source": all(torch.equal(a, b) for a, b in zip(stored, again, strict=True)),
        }
        return {
            "sizes": torch.tensor(sizes),
            **{name: torch.tensor(value) for name, value in flags.items()},
        }

    @staticmethod
    def _computed(operators: Contract, packed: PackedExperts, slot: int, x: Tensor) -> Tensor:
        rows = x.shape[0]
        ids = torch.full((rows, 1), slot, dtype=torch.int32, device=x.device)
        weights = torch.ones(rows, 1, device=x.device)
        routed = operators.dispatch(Activation(x), Routing(ids, weights), Group())
        outputs = operators.expert_mlp(routed, packed, 10.0, Numerics.REF).outputs
        assert outputs is not None, "expert_mlp left no outputs"
        return outputs

    def oracle(self, case: Case, arguments: Arguments) -> Outputs:
        sizes = [case.size(name) for name in ("experts", "hidden", "intermediate")]
        flags = ("kind", "memory", "bytes", "moved", "others", "computed", "source")
        return {
            "sizes": torch.tensor(sizes),
            **{name: torch.tensor(True) for name in flags},
        }

    def invalid(self) -> Iterator[Invalid]:
        case = self._case(3, 32, 32, "fp4", edge="invalid")
        for slot in (-1, 3):
            arguments = self.inputs(case, generator_of(case))
            facts = {**dict(case.facts), "slot": slot}
            named = Case.of("pack_experts", facts, edge="invalid")
            yield Invalid(named, {**arguments, "slot": slot}, IndexError)


SLOTS: tuple[OperatorSuite, ...] = (PackExperts(),)
