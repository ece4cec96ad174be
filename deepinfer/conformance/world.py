"""`World`: the inputs of a case on one backend, with guards around everything it may touch.

A suite describes arguments with host tensors, published matrices (`LinearSource`, `TableSource`,
`ExpertSources`) and pools. `World.place` packs the matrices with the backend's own operators and
copies every tensor into an allocation of its own between two guards; afterwards it finds what was
written outside, and which arguments were changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Batch, Contract, ExpertSource, LinearSource
from deepinfer.conformance.trees import map_leaves, tensors

GUARD_BYTES = 4096
GUARD_PATTERN = 0xA5


@dataclass(frozen=True)
class TableSource:
    """A published table whose rows are gathered (`pack_table`)."""

    source: LinearSource


@dataclass(frozen=True)
class ExpertSources:
    """The published experts of one layer (`pack_experts`)."""

    sources: tuple[ExpertSource, ...]


@dataclass
class World:
    """Arguments of one case, placed for the operators of one backend."""

    operators: Contract
    _placed: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _buffers: list[tuple[Tensor, int]] = field(default_factory=list)

    def place(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments on this backend. One that occurs twice is placed once and shared."""
        placed: dict[str, Any] = map_leaves(self._leaf, arguments)
        return placed

    def overrun(self) -> str:
        """Where bytes outside of the arguments were written; "" where none were."""
        for buffer, size in self._buffers:
            for where, guard in (("before", buffer[:GUARD_BYTES]), ("behind", buffer[-size:])):
                touched = int((guard.cpu() != GUARD_PATTERN).sum())
                if touched:
                    return f"{touched} bytes {where} an argument of {buffer.numel()} bytes"
        return ""

    def _leaf(self, value: Any) -> Any:
        if id(value) in self._placed:
            return self._placed[id(value)][1]
        placed = self._place(value)
        if placed is not value:
            self._placed[id(value)] = value, placed  # the value is kept alive for its id
        return placed

    def _place(self, value: Any) -> Any:
        if isinstance(value, LinearSource):
            return self.operators.pack_linear(value)
        if isinstance(value, TableSource):
            return self.operators.pack_table(value.source)
        if isinstance(value, ExpertSources):
            return self.operators.pack_experts(value.sources)
        if isinstance(value, Tensor):
            return self._guarded(value)
        if isinstance(value, Batch):
            return self._planned(value)
        return value

    def _planned(self, batch: Batch) -> Batch:
        """The batch on the device, with the plan that this backend makes of it."""
        parts = {part.name: getattr(batch, part.name) for part in fields(batch)}
        placed = Batch(**map_leaves(self._leaf, parts))
        return replace(placed, plan=self.operators.plan(placed))

    def _guarded(self, value: Tensor) -> Tensor:
        """A copy of a host tensor on the device, between two guards."""
        device = self.operators.device
        size = value.numel() * value.element_size()
        behind = GUARD_BYTES + -size % GUARD_BYTES
        buffer = torch.full(
            (GUARD_BYTES + size + behind,), GUARD_PATTERN, dtype=torch.uint8, device=device
        )
        inside = buffer[GUARD_BYTES : GUARD_BYTES + size]
        placed = inside.view(value.dtype).view(value.shape) if size else inside.new_empty(0)
        if not size:
            return torch.empty(value.shape, dtype=value.dtype, device=device)
        placed.copy_(value)
        self._buffers.append((buffer, behind))
        return placed


def host(arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Copies of all tensors among the arguments on the host, by dotted path.

    A batch's plan is the backend's own and is left out.
    """
    return {
        name: tensor.detach().cpu().clone()
        for name, tensor in tensors(arguments)
        if "plan" not in name.split(".")
    }


def changed(
    before: dict[str, Tensor], after: dict[str, Tensor], allowed: dict[str, Tensor]
) -> Iterator[str]:
    """Messages about arguments that may not change and did.

    allowed: elements that may change, by path.
    """
    for name, old in before.items():
        differs = _bytes(after[name]) != _bytes(old)
        if name in allowed:
            mask = allowed[name].reshape(old.shape)
            width = max(1, differs.numel() // max(1, old.numel()))
            differs &= ~mask.reshape(-1).repeat_interleave(width)
        count = int(differs.sum())
        if count:
            place = int(torch.nonzero(differs)[0])
            yield f"{count} bytes of {name} were changed, the first at byte {place}"


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
