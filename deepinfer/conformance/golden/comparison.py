"""Compare one result with its golden value; a check that raises becomes a failed item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from deepinfer.conformance.golden.metrics import bf16_steps, relative, worst
from deepinfer.conformance.golden.report import Item, Measure

FP32_RELATIVE = 1e-5
"""fp32 outputs: sums of a few hundred products in another order stay far below this."""


def attempt(name: str, compute: str, check: Callable[[], Iterable[Item]]) -> Iterator[Item]:
    """The items of a check. An exception ends it with a failed item; other checks go on.

    Data without a tensor, a shape that an operator refuses and a fault of the backend are all
    results that the report has to show.
    """
    try:
        yield from check()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        yield Item.broken(name, compute, f"{type(error).__name__}: {lines[0]}")


def compared(
    name: str,
    compute: str,
    got: Tensor,
    want: Tensor,
    measure: Callable[[Tensor, Tensor], Iterable[Measure]],
    note: str = "",
) -> Item:
    """Compare by measures of (got, want) on the CPU. Another shape, or no element, is a failure."""
    got, want = got.cpu(), want.cpu()
    if got.shape != want.shape:
        return Item.broken(name, compute, f"shape {[*got.shape]}, expected {[*want.shape]}")
    if not want.numel():
        return Item.broken(name, compute, f"nothing to compare: the shape is {[*want.shape]}")
    return Item.of(name, compute, *measure(got, want), note=note)


def close(name: str, compute: str, got: Tensor, want: Tensor) -> Item:
    """fp32 outputs by relative error of each row, bf16 outputs in steps of bf16."""
    if compute == "fp32":
        return compared(name, compute, got, want, _relative)
    return compared(name, compute, got, want, _steps)


def absolute(name: str, compute: str, got: Tensor, want: Tensor, limit: float) -> Item:
    """Largest difference."""
    return compared(
        name,
        compute,
        got,
        want,
        lambda got, want: [Measure("max abs", worst((got - want).abs()), "<=", limit)],
    )


def equal(name: str, compute: str, got: Tensor, want: Tensor) -> Item:
    """Every element by value; NaN equals nothing."""
    return compared(name, compute, got, want, lambda got, want: [differing(got, want)])


def differing(got: Tensor, want: Tensor, limit: float = 0.0) -> Measure:
    """Share of elements that differ by value."""
    return Measure("elements differing", float((got != want).double().mean()), "<=", limit)


def _relative(got: Tensor, want: Tensor) -> list[Measure]:
    return [Measure("max rel", worst(relative(got, want)), "<=", FP32_RELATIVE)]


def _steps(got: Tensor, want: Tensor) -> list[Measure]:
    return [Measure("bf16 steps", bf16_steps(got, want), "<=", 1)]
