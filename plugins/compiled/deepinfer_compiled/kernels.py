"""What is compiled: each operator as one function of tensors, for rows of any number and width."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


class Kernel:
    """A function of tensors [T, ...] and of more, compiled once for each dtype.

    That one kernel takes every size of at least 2. For a size of 0 or 1 torch would compile another
    one in the middle of a request, so a single row, which every decoded token is, runs twice. No
    rows, and a width or a number of streams of 1, which no released model has, run the function
    as it is.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self._function = function

    @cached_property
    def _compiled(self) -> Callable[..., Tensor]:
        """Made on first use: the compiler of torch is slow to import and brings packages along."""
        return torch.compile(self._function, dynamic=True, fullgraph=True)

    def __call__(self, rows: tuple[Tensor, ...], *more: Any) -> Tensor:
        """rows: the tensors whose first axis counts rows. more: the rest, the same for all rows."""
        count = rows[0].shape[0]
        if count == 0 or any(1 in tensor.shape[1:] for tensor in rows):
            return self._function(*rows, *more)
        if count == 1:
            rows = tuple(torch.cat((tensor, tensor)) for tensor in rows)
        arguments = [_plain(value) if isinstance(value, Tensor) else value for value in more]
        with torch.no_grad():  # else a kernel for each of: with and without gradients
            return self._compiled(*map(_plain, rows), *arguments)[:count]


def _plain(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of its own that differs from others in dtype and sizes alone.

    A kernel is compiled for what it saw in the first call. A tensor that starts at the front of its
    storage would stay one that always does, and sizes that happen to be equal (4 rows of 4 streams)
    would be equal for ever; the next call would compile again, and torch gives up after some times.
    """
    from torch import _dynamo

    alias: Tensor = from_dlpack(tensor.detach().contiguous())  # starts at 0 of its storage
    _dynamo.mark_dynamic(alias, list(range(alias.dim())))
    return alias


def _rms_norm(x: Tensor, weight: Tensor, eps: float, wide: torch.dtype) -> Tensor:
    values = x.to(wide)
    mean = (values * values).mean(-1, keepdim=True)
    return (values * (1 / torch.sqrt(mean + eps)) * weight).to(x.dtype)


def _collapse(streams: Tensor, pre: Tensor, wide: torch.dtype) -> Tensor:
    return (streams.to(wide) * pre.unsqueeze(-1)).sum(1).to(streams.dtype)


def _expand(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, wide: torch.dtype) -> Tensor:
    mixed = (comb.unsqueeze(-1) * streams.to(wide).unsqueeze(2)).sum(1)  # over [T, from, to, H]
    written = post.unsqueeze(-1) * out.to(wide).unsqueeze(1)
    return (mixed + written).to(streams.dtype)


rms_norm = Kernel(_rms_norm)
collapse = Kernel(_collapse)
expand = Kernel(_expand)
