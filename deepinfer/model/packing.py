"""`PackingPlan`: the memory that the packed weights will take, by who packs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Contract,
    ExpertSource,
    LinearSource,
    Memory,
    PackedExperts,
    PackedLinear,
    PackedTable,
    Packing,
    Source,
    Weights,
)
from deepinfer.backend.bindings import HOST
from deepinfer.backend.resolution import Operators
from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.plan import human_bytes
from deepinfer.errors import DeviceMemoryError
from deepinfer.model.weights import WeightLoader


@dataclass(frozen=True)
class PackingPlan:
    """Memory of packed weights by provider: native, fallback, host.

    The share of the host is host memory; all others are memory of the device. silent: providers
    that do not say what they take.
    """

    shares: Mapping[str, Packing]
    silent: frozenset[str] = frozenset()

    @property
    def device_bytes(self) -> int:
        """Bytes that must be free on the device, as far as providers say."""
        shares = [share for provider, share in self.shares.items() if provider != HOST]
        peak = max((share.temporary for share in shares), default=0)
        return sum(share.resident for share in shares) + peak

    def check(self, backend: str, memory: Memory | None) -> None:
        """DeviceMemoryError where the device has less. memory None: unknown, so not checked."""
        if memory is None or self.device_bytes <= memory.free:
            return
        raise DeviceMemoryError(
            f"the weights need {human_bytes(self.device_bytes)} on the device of backend "
            f"{backend!r}, which has {human_bytes(memory.free)} free of "
            f"{human_bytes(memory.total)}. {self}. Free memory of the device, or choose a smaller "
            "checkpoint or another accelerator"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a silent provider has null."""
        known: dict[str, Any] = {name: share._asdict() for name, share in self.shares.items()}
        return {**known, **dict.fromkeys(sorted(self.silent))}

    def __str__(self) -> str:
        parts = [
            f"{name} {human_bytes(share.resident)} stay, {human_bytes(share.temporary)} "
            f"temporary, {human_bytes(share.mapped)} mapped"
            for name, share in self.shares.items()
        ]
        parts += [f"{name} does not say" for name in sorted(self.silent)]
        return f"packed weights: {'; '.join(parts)}"


def plan_packing(
    checkpoint: Checkpoint, operators: Operators, resident_tables: bool = False
) -> PackingPlan:
    """Ask every packer about all weights of the text model, without reading any."""
    planner = _Planner(operators)
    WeightLoader(checkpoint, planner, 0, resident_tables).load()
    return PackingPlan(planner.shares, frozenset(planner.silent))


class _Planner(Contract):
    """Packing operators that add up the memory that the real ones would take."""

    device = torch.device("meta")

    def __init__(self, operators: Operators) -> None:
        self._packers = operators.packers
        self.shares: dict[str, Packing] = {}
        self.silent: set[str] = set()

    def _add(self, operator: str, weights: Weights) -> None:
        for provider, backend in self._packers.get(operator, ()):
            share = backend.packing(operator, weights)
            if share is None:
                self.silent.add(provider)
            else:
                known = self.shares.get(provider, Packing())
                self.shares[provider] = known.beside(share)

    def pack_vector(self, source: Source) -> Tensor:
        self._add("pack_vector", source)
        return torch.empty(source.shape, device=self.device)

    def pack_linear(self, source: LinearSource) -> PackedLinear:
        self._add("pack_linear", source)
        return PackedLinear()

    def pack_table(self, source: LinearSource) -> PackedTable:
        self._add("pack_table", source)
        return PackedTable()

    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        self._add("pack_experts", sources)
        return PackedExperts()
