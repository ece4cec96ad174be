"""Functions around operators: order of arguments, errors that name the backend, taps, absence."""

from __future__ import annotations

import functools
import inspect
import operator as python_operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from deepinfer.backend.base import Contract
from deepinfer.errors import BackendContractError, DeepInferError, UnsupportedOperatorError

Function = Callable[..., Any]
Tap = Callable[[str, tuple[Any, ...], Any], Any]


@functools.cache
def _signature(operator: str) -> inspect.Signature:
    return inspect.signature(getattr(Contract, operator))


def positional(operator: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments in the order of the contract's signature, however they were passed."""
    if not kwargs:
        return args
    return _signature(operator).bind(None, *args, **kwargs).args[1:]


def named(operator: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by the names of the contract's signature."""
    names = list(_signature(operator).parameters)[1:]  # without self
    return dict(zip(names, arguments, strict=True))


def at(operator: str, path: str) -> Callable[[tuple[Any, ...]], Any]:
    """The function that reads a declared path from positional arguments.

    It returns None where a part of the path is None.
    """
    parameter, *attributes = path.split(".")
    place = list(_signature(operator).parameters).index(parameter) - 1  # without self
    get = python_operator.attrgetter(".".join(attributes)) if attributes else None

    def read(arguments: tuple[Any, ...]) -> Any:
        found = arguments[place]
        return found if get is None or found is None else get(found)

    return read


def missing(message: str) -> Callable[..., NoReturn]:
    """A function for an operator that has no provider because the model did not announce it."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedOperatorError(message)

    return call


def guarded(function: Function, backend: str, operator: str) -> Function:
    """Turn an exception of a native operator into an error that names the backend.

    IndexError passes: the contract raises it for ids outside a table.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (DeepInferError, IndexError):
            raise
        except Exception as error:
            raise BackendContractError(
                f"backend {backend!r} accepted operator {operator!r} and then raised "
                f"{type(error).__name__}: {error}. This is a fault of the backend; "
                "DEEPINFER_ACCELERATOR=reference runs without it."
            ) from error

    return call


def tapped(function: Function, operator: str, taps: tuple[Tap, ...]) -> Function:
    """Call every tap after the function. A result of a tap that is not None replaces its own."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        arguments = positional(operator, args, kwargs)
        for tap in taps:
            replacement = tap(operator, arguments, result)
            result = result if replacement is None else replacement
        return result

    return call
