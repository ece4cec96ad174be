"""Mutants of the device's services: one fault each, named by its docstring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.backend import Batch, Memory, Plan
from deepinfer.conformance.case import Failure
from tests.conformance.mutants.variant import Variant, with_arguments


class SharesHostMemory(Variant, seen_at="device"):
    """A tensor made of an array is a view of it."""

    def tensor(self, values: Sequence[Any] | Any, dtype: torch.dtype) -> Tensor:
        if isinstance(values, np.ndarray):
            return torch.from_numpy(values).to(dtype)
        return super().tensor(values, dtype)


class WorkspaceOfAllNames(Variant, seen_at="device"):
    """Scratch of one name is scratch of every name."""

    workspace = with_arguments("workspace", name=lambda name: "scratch")


class WorkspaceNotKept(Variant, seen_at="device"):
    """Scratch is made anew by every request."""

    def workspace(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)


class CopyCutShort(Variant, seen_at="device"):
    """A copy ends after whole pages of 4096 elements."""

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        whole = max(1, len(source) // 4096 * 4096)
        destination[:whole].copy_(source[:whole])


class CopyIgnoresStrides(Variant, seen_at="device"):
    """A copy reads its source as if it were contiguous."""

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        destination.copy_(torch.as_strided(source, tuple(source.shape), (1,)))


class MemoryOverfull(Variant, seen_at="device"):
    """More memory is free than there is."""

    def memory(self) -> Memory | None:
        return Memory(free=2, total=1)


class PlanWritesBatch(Variant, seen_at="device", failure=Failure.WRITE):
    """Planning moves the batch's rows on by a position."""

    def plan(self, batch: Batch) -> Plan:
        batch.positions.add_(1)
        return Plan()


class CaptureFreezesInputs(Variant, seen_at="device"):
    """A replay gives again what the function gave when it was captured: nothing is computed."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None] | None:
        function()
        return lambda: None
