"""What is compiled: each operator as one function of tensors, for rows of any number and width.

`dynamic=True` makes one kernel a precision for all sizes of at least 2. For a size of 0 or 1 torch
would compile another one when it meets it, in the middle of a request; `Kernel` keeps them away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Kernel:
    """A function of tensors [T, ...] and of more, compiled for sizes of at least 2.

    A single row, which every decoded token is, runs twice. No rows, or a width or count of one,
    which no released model has, run the function as it is.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.compiled: Callable[..., Tensor] = torch.compile(function, dynamic=True, fullgraph=True)

    def __call__(self, rows: tuple[Tensor, ...], *more: Any) -> Tensor:
        """rows: the tensors whose first axis counts rows. more: the rest, the same for all rows."""
        count = rows[0].shape[0]
        if count == 0 or any(1 in tensor.shape[1:] for tensor in rows):
            return self.function(*rows, *more)
        if count == 1:
            rows = tuple(torch.cat((tensor, tensor)) for tensor in rows)
        return self.compiled(*(tensor.contiguous() for tensor in rows), *more)[:count]


def _rms_norm(x: Tensor, weight: Tensor, eps: float, wide: torch.dtype) -> Tensor:
    values = x.to(wide)
    mean = (values * values).mean(-1, keepdim=True)
    return (values * (1 / torch.sqrt(mean + eps)) * weight.to(wide)).to(x.dtype)


def _collapse(streams: Tensor, pre: Tensor, wide: torch.dtype) -> Tensor:
    return (streams.to(wide) * pre.unsqueeze(-1)).sum(1).to(streams.dtype)


def _expand(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, wide: torch.dtype) -> Tensor:
    mixed = (comb.unsqueeze(-1) * streams.to(wide).unsqueeze(2)).sum(1)  # over [T, from, to, H]
    written = post.unsqueeze(-1) * out.to(wide).unsqueeze(1)
    return (mixed + written).to(streams.dtype)


rms_norm = Kernel(_rms_norm)
collapse = Kernel(_collapse)
expand = Kernel(_expand)
