"""What a backend class declares, checked against the contract when the backend is created.

Nothing would ever call or look up a name that the contract does not have. Without this check its
author would not notice.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from typing import Any

from deepinfer.backend.base import OPERATORS, Backend
from deepinfer.backend.operators import declaration_of
from deepinfer.errors import BackendContractError

PROMISES = ("batch_invariant", "nondeterministic")
LIKENESS = 0.7
"""A method's name that is at least this similar to an operator's is taken as misspelt."""


def check_declarations(backend: Backend, who: str) -> None:
    """BackendContractError where a backend declares what the contract does not have.

    Checked are the names in `batch_invariant` and `nondeterministic`, methods marked with
    `primitive` or `step`, methods that have the arguments of an operator and nearly its name, and
    the arguments of the operators that it overrides. who: the backend with its origin, for the
    message.
    """
    cls = type(backend)
    for message in (*_promises(backend), *_methods(cls), *_overrides(cls)):
        raise BackendContractError(f"{who}: {message}")


def _promises(backend: Backend) -> Iterator[str]:
    for promise in PROMISES:
        names: Any = getattr(backend, promise)
        if not isinstance(names, (set, frozenset)):
            yield (
                f"{promise} is a {type(names).__name__}, expected a frozenset of names of operators"
            )
            continue
        for name in sorted(names, key=str):
            if name not in OPERATORS:
                yield f"{promise} names an unknown operator {name!r}; {_expected(str(name))}"


def _methods(cls: type[Backend]) -> Iterator[str]:
    for name in sorted(set(dir(cls)) - set(dir(Backend))):
        function = inspect.getattr_static(cls, name)
        if not inspect.isfunction(function):
            continue
        where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        declared = declaration_of(function)
        if declared is not None:
            yield (
                f"method {name!r} ({where}) is marked as a {declared.kind} and the "
                f"contract has no such operator: a backend overrides operators and adds none; "
                f"{_expected(name)}"
            )
        elif not name.startswith("_") and _misspelt(name, function):
            yield (
                f"method {name!r} ({where}) has the arguments of an operator and the contract has "
                f"none of that name, so it would never be called; {_expected(name)}. Start the "
                "name of a helper with an underscore"
            )


def _overrides(cls: type[Backend]) -> Iterator[str]:
    for name in sorted(OPERATORS):
        function = inspect.getattr_static(cls, name)
        if function is inspect.getattr_static(Backend, name) or not inspect.isfunction(function):
            continue
        if not _takes(function, _arguments(getattr(Backend, name))):
            where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
            expected = ", ".join(_arguments(getattr(Backend, name)))
            yield (
                f"operator {name!r} ({where}) takes ({', '.join(_arguments(function))}), the "
                f"contract's takes ({expected}); take these arguments in this order, and give any "
                "others a default"
            )


def _takes(function: Any, expected: list[str]) -> bool:
    """Can a function be called with these arguments by place and by name?"""
    parameters = list(inspect.signature(function).parameters.values())
    for place, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return True  # it takes what comes, and looks at it itself
        named = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if place < len(expected):
            if not named or parameter.name != expected[place]:
                return False
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            return False
    return len(parameters) >= len(expected)


def _misspelt(name: str, function: Any) -> bool:
    near = nearest(name)
    return near is not None and _arguments(function) == _arguments(getattr(Backend, near))


def _arguments(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def nearest(name: str) -> str | None:
    """The operator whose name is most similar, or None where none is similar."""
    found = difflib.get_close_matches(name, OPERATORS, 1, LIKENESS)
    return found[0] if found else None


def _expected(name: str) -> str:
    near = nearest(name)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"expected one of {', '.join(sorted(OPERATORS))}"
