"""Classes of input values: the ordinary ones, and those at which kernels go wrong.

Every class is a function of a shape and a generator, so a case's seed repeats it. Values are made
in float32 and exact in bf16 where a class promises ties or saturation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Maker = Callable[[Sequence[int], torch.Generator], Tensor]

LARGE = 2.0**60
"""Large enough that a square overflows float32, small enough that a scaled sum does not."""
SATURATING = 2.0**127
SUBNORMAL = 2.0**-130


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """N(0, 1)."""
    return torch.randn(*shape, generator=generator)


def large(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Magnitudes spread evenly in the exponent from 2^-20 to 2^20."""
    exponents = torch.randint(-20, 21, tuple(shape), generator=generator)
    return torch.ldexp(normal(shape, generator), exponents)


def extreme(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Rows at the ends of the range: about 2^60, 2^-60, and a mixture of both."""
    x = normal(shape, generator)
    factors = torch.tensor([LARGE, 1 / LARGE, 1.0])
    rows = torch.randint(0, 3, (shape[0],), generator=generator)
    return x * factors[rows].view(-1, *[1] * (len(shape) - 1))


def saturated(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Now and then a value that no block scale reaches; its neighbours are ordinary."""
    x = normal(shape, generator)
    hit = torch.rand(tuple(shape), generator=generator) < 0.02
    return torch.where(hit, torch.copysign(torch.full_like(x, SATURATING), x), x)


def subnormal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Magnitudes below the smallest normal float32, and zeros."""
    x = normal(shape, generator) * SUBNORMAL
    return x * (torch.rand(tuple(shape), generator=generator) < 0.8)


def ties(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Few distinct values, so that equal scores and values halfway between codes are common."""
    steps = torch.randint(-10, 11, tuple(shape), generator=generator)
    return steps / 4.0


def zeros(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Zeros of both signs."""
    sign = torch.randint(0, 2, tuple(shape), generator=generator) * 2 - 1
    return torch.zeros(*shape) * sign


def nan_row(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """N(0, 1), with one NaN in one row."""
    x = normal(shape, generator)
    if shape and shape[0]:
        row = int(torch.randint(0, shape[0], (1,), generator=generator))
        flat = x[row].reshape(-1)
        flat[int(torch.randint(0, flat.numel(), (1,), generator=generator))] = float("nan")
        x[row] = flat.view(x[row].shape)
    return x


def infinite(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """N(0, 1), with infinities in some rows: at least one of either sign, more negative ones."""
    x = normal(shape, generator)
    chance = torch.rand(tuple(shape), generator=generator)
    x = torch.where(chance < 0.02, torch.full_like(x, float("-inf")), x)
    x = torch.where(chance > 0.995, torch.full_like(x, float("inf")), x)
    flat = x.view(-1)
    for place, sign in zip(torch.randperm(len(flat), generator=generator), (1, -1), strict=False):
        flat[place] = sign * float("inf")
    return x


def masked(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """N(0, 1), most of it -inf; some rows hold nothing else."""
    x = normal(shape, generator)
    keep = torch.rand(tuple(shape), generator=generator) < 0.3
    if shape and shape[0] > 1:
        keep[int(torch.randint(0, shape[0], (1,), generator=generator))] = False
    return torch.where(keep, x, torch.full_like(x, float("-inf")))


class ShapesOnly(torch.Generator):
    """Random numbers for arguments of which only shapes and dtypes matter.

    Published matrices that are made with it have no values and take no memory.
    """


CLASSES: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        normal,
        large,
        extreme,
        saturated,
        subnormal,
        ties,
        zeros,
        nan_row,
        infinite,
        masked,
    )
}


def make(name: str, shape: Sequence[int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Values of a class in a dtype."""
    return CLASSES[name](shape, generator).to(dtype)
