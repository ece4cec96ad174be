"""Nested values: tensors inside dataclasses, named tuples, tuples, lists and dictionaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with every leaf replaced by `function(leaf)`.

    Leaves are whatever is no dataclass instance, tuple, list or dictionary.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        replaced = function(value)
        if replaced is not value:
            return replaced
        changes = {
            field.name: map_leaves(function, getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(function, part) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(map_leaves(function, part) for part in value)
    if isinstance(value, dict):
        return {key: map_leaves(function, part) for key, part in value.items()}
    return function(value)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same structure with every tensor replaced."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors with their dotted paths, in order."""
    if isinstance(value, Tensor):
        yield name, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name), _join(name, field.name))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key, part in zip(value._fields, value, strict=True):
            yield from tensors(part, _join(name, key))
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from tensors(part, _join(name, str(place)))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors(part, _join(name, str(key)))


def clone(value: Any) -> Any:
    """The same structure over copies of all tensors."""
    return map_tensors(lambda tensor: tensor.clone(), value)


def widened(value: Any) -> Any:
    """Floating-point tensors as float64; everything else as it is."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.dtype in (torch.bfloat16, torch.float32) else tensor

    return map_tensors(wide, value)


def _join(left: str, right: str) -> str:
    return f"{left}.{right}" if left else right
