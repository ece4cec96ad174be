"""Fusing of elementwise chains by torch.compile; TORCHDYNAMO_DISABLE=1 leaves them as written.

Shapes are static: a training step always has the same number of tokens, in few lengths.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

RECOMPILE_LIMIT = 64


def prepare() -> None:
    """Allow as many variants of a function as there are lengths and passes. The setting belongs to
    a thread: call this in each."""
    if os.environ.get("TORCHDYNAMO_DISABLE") != "1":
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT


def fused(function: F) -> F:
    """The function, compiled at its first call."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        return torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
            return function(*arguments)
        return compiled()(*arguments)

    return cast(F, call)
