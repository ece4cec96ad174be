"""Fusing of elementwise chains by torch.compile; TORCHDYNAMO_DISABLE=1 leaves them as written.

Shapes are static: a training step always has the same number of tokens, in few lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

torch._dynamo.config.recompile_limit = 64


def fused(function: F) -> F:
    """The function, compiled at its first call."""
    compiled: F = torch.compile(function, dynamic=False)
    return compiled
