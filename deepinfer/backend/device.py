"""Device family: memory, streams, copies, planning. Every service has an eager default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.backend.batch import Batch, Plan


class Memory(NamedTuple):
    """Bytes of the device's memory."""

    free: int
    total: int


class Device:
    """Services of one device. A backend overrides those that its runtime has."""

    device: torch.device

    def memory(self) -> Memory | None:
        """Free and total bytes, or None where the device cannot say."""
        return None

    def tensor(self, values: Sequence[Any] | Any, dtype: torch.dtype) -> Tensor:
        """A device tensor from host values (lists or numpy arrays), never sharing their memory."""
        if isinstance(values, np.ndarray) and values.dtype.isnative:
            return torch.from_numpy(values.copy()).to(device=self.device, dtype=dtype)
        return torch.tensor(values, dtype=dtype, device=self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A host buffer for asynchronous copies; ordinary memory by default."""
        return torch.empty(tuple(shape), dtype=dtype)

    def copy_async(self, destination: Tensor, source: Tensor) -> None:
        """Copy between host and device; may return before it is done. Blocking by default."""
        destination.copy_(source)

    def to_host(self, tensor: Tensor) -> Tensor:
        """The tensor in host memory, complete when this returns: what a host operator reads."""
        return tensor.to("cpu")

    def from_host(self, tensor: Tensor) -> Tensor:
        """A tensor of the host on this device: what a host operator returned."""
        return tensor.to(self.device)

    def stream(self) -> AbstractContextManager[object]:
        """A context in which work is ordered apart from the default stream; none by default."""
        return nullcontext()

    def synchronise(self) -> None:
        """Wait until all work issued so far is done."""

    def plan(self, batch: Batch) -> Plan:
        """What this backend derives from a batch once per step."""
        return Plan()

    def capture(self, function: Callable[[], None]) -> Callable[[], None] | None:
        """A replayable form of `function` with fixed shapes, or None: run it eagerly.

        A function that reaches an operator of the host cannot be captured: it raises
        UnsupportedOperatorError while this method runs it.
        """
        return None

    def collectives(self) -> str | None:
        """Name of the process-group backend for this device, or None."""
        return None

    def workspace(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Scratch memory kept between steps, uninitialised; grows to the largest request."""
        kept: dict[str, Tensor] = self.__dict__.setdefault("_workspaces", {})
        count = 1
        for size in shape:
            count *= size
        key = f"{name}:{dtype}"
        if key not in kept or kept[key].numel() < count:
            kept[key] = torch.empty(count, dtype=dtype, device=self.device)
        return kept[key][:count].view(tuple(shape))
