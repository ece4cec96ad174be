"""`Variant`, which all mutants are, and operators with an argument or their result changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from deepinfer.backend import Region
from deepinfer.backend.functions import named, positional
from deepinfer.conformance.case import Failure
from deepinfer_reference.backend import ReferenceBackend

Change = Callable[[Any], Any]


class Variant(ReferenceBackend):
    """The reference with other code for some operators: a mutant, or a right base of mutants.

    seen_at: the operators, and suites of several calls, with a quick case that is to fail; none
    for a right one. failure: how an operator's case fails; suites see other numbers.
    """

    seen_at: ClassVar[tuple[str, ...]] = ()
    failure: ClassVar[Failure] = Failure.NONE

    def __init_subclass__(cls, seen_at: str = "", failure: Failure = Failure.NUMBERS) -> None:
        super().__init_subclass__()
        cls.seen_at, cls.failure = tuple(seen_at.split()), failure


def with_arguments(operator: str, **changes: Change) -> Callable[..., Any]:
    """A method: the reference's operator, called with some arguments changed.

    changes: by the name of an argument in the contract, the function that it goes through.
    """
    right = getattr(ReferenceBackend, operator)

    def method(self: ReferenceBackend, *args: Any, **kwargs: Any) -> Any:
        arguments = named(operator, positional(operator, args, kwargs))
        for name, change in changes.items():
            arguments[name] = change(arguments[name])
        return right(self, *arguments.values())

    return method


def with_result(operator: str, change: Change) -> Callable[..., Any]:
    """A method: the reference's operator, whose result goes through a function."""
    right = getattr(ReferenceBackend, operator)

    def method(self: ReferenceBackend, *args: Any, **kwargs: Any) -> Any:
        return change(right(self, *args, **kwargs))

    return method


def interleaved(region: Region) -> Region:
    """The same region, read as if scales stood behind each entry."""
    return replace(region, format=replace(region.format, layout="interleaved"))


def nan_in_the_row_before(out: Tensor) -> Tensor:
    """The same rows [T, K], those before a row with a NaN made NaN as well."""
    return torch.where(out.isnan().any(1).roll(-1)[:, None], float("nan"), out)
