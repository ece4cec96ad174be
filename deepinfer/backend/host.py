"""Operators that run on the host, for a device that cannot run the reference.

Tensors in the arguments are copied to the host, also those inside dataclasses, named tuples, lists
and tuples. Results and what the contract says is written in place are copied back. Every call waits
for the device and moves whole pools: this makes an operator available, not fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from deepinfer.backend.base import DECLARATIONS, Backend
from deepinfer.backend.batch import Plan
from deepinfer.backend.bindings import HOST
from deepinfer.backend.bounded import Counts
from deepinfer.backend.functions import Function, at, positional
from deepinfer.backend.values import PackedExperts, PackedLinear, Source
from deepinfer.errors import UnsupportedOperatorError

_OPAQUE = (Plan, Source)


class Capture:
    """Whether a function is being captured; an operator of the host cannot run in a capture."""

    def __init__(self) -> None:
        self.active = False

    def watched(self, function: Callable[[], None]) -> Callable[[], None]:
        """The function, which is known to be captured while it runs."""

        def run() -> None:
            self.active = True
            try:
                function()
            finally:
                self.active = False

        return run


class Twins:
    """Weights that are packed twice: on the device for its operators, on the host for its own."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, object]] = {}

    def packer(self, device: Function, host: Function) -> Function:
        """Pack on the device and on the host; the result is the device's value."""

        def pack(*args: Any, **kwargs: Any) -> Any:
            packed = device(*args, **kwargs)
            self._kept[id(packed)] = packed, host(*args, **kwargs)
            return packed

        return pack

    def on_host(self, packed: object) -> object:
        """The host's packed value of the same source, or the value itself if the host packed it."""
        kept = self._kept.get(id(packed))
        return packed if kept is None else kept[1]


def on_host(
    operator: str,
    function: Function,
    backend: Backend,
    twins: Twins,
    capture: Capture,
    counts: Counts,
) -> Function:
    """The host's `function` as an operator of the backend's device.

    Raises UnsupportedOperatorError inside a capture: a replay would not wait for the host.
    """
    writes = DECLARATIONS[operator].writes
    written = at(operator, writes) if writes else None

    def call(*args: Any, **kwargs: Any) -> Any:
        if capture.active:
            raise UnsupportedOperatorError(
                f"operator {operator!r} runs on the host and cannot be captured in a graph; run "
                "the step eagerly, or give the backend this operator"
            )
        counts[operator, HOST] += 1
        arguments = positional(operator, args, kwargs)
        copies = _Copies(backend, twins)
        moved = tuple(copies.to_host(argument) for argument in arguments)
        result = function(*moved)
        if written is not None and (target := written(arguments)) is not None:
            copied = written(moved)
            if copied is not target:
                backend.copy_async(target, copied)
                backend.synchronise()
        return copies.to_device(result)

    return call


class _Copies:
    """The copies of one call. Each tensor is copied once in each direction."""

    def __init__(self, backend: Backend, twins: Twins) -> None:
        self._backend = backend
        self._twins = twins
        self._there: dict[int, Tensor] = {}
        self._here: dict[int, Tensor] = {}
        self._alive: list[Tensor] = []

    def to_host(self, value: Any) -> Any:
        if isinstance(value, PackedLinear | PackedExperts):
            return self._twins.on_host(value)
        return _mapped(value, self._one_to_host)

    def to_device(self, value: Any) -> Any:
        return _mapped(value, self._one_to_device)

    def _one_to_host(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._there:
            copied = self._backend.to_host(tensor)
            self._there[id(tensor)] = copied
            self._here[id(copied)] = tensor
            self._alive += [tensor, copied]  # so that no other tensor gets their ids
        return self._there[id(tensor)]

    def _one_to_device(self, tensor: Tensor) -> Tensor:
        known = self._here.get(id(tensor))
        return self._backend.from_host(tensor) if known is None else known


def _mapped(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """A value with all its tensors moved; the same object where it holds none."""
    if isinstance(value, Tensor):
        return move(value)
    if value is None or isinstance(value, _OPAQUE):
        return value
    if isinstance(value, list | tuple):
        parts = [_mapped(part, move) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for one in dataclasses.fields(value):
            old = getattr(value, one.name)
            new = _mapped(old, move)
            if new is not old:
                changed[one.name] = new
        return dataclasses.replace(value, **changed) if changed else value
    return value
