"""Resolution: which function runs each operator, decided once at start.

Order: the backend's own; else the step's default body, its inner calls resolved by the same
table; else the reference's primitive on the backend's device. A fallback is never silent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from deepinfer.backend.base import OPERATORS, Backend, Contract
from deepinfer.backend.operators import CallSpec
from deepinfer.errors import BackendContractError, DeepInferError, UnsupportedOperatorError

Tap = Callable[[str, tuple[Any, ...], Any], None]

NATIVE = "native"
COMPOSED = "composed"
FALLBACK = "fallback"
MISSING = "missing"


@dataclass(frozen=True)
class Binding:
    """Who runs an operator: provider (native, composed, fallback, missing) and why."""

    operator: str
    kind: str
    provider: str
    reason: str = ""


class Operators(Contract):
    """The resolved table. Bound operators are instance attributes that shadow the contract's.

    A composed step is the contract's own body, whose `self` is this table, so that its inner calls
    are resolved by it too.
    """

    def __init__(self, backend: Backend, bindings: dict[str, Binding]) -> None:
        self.backend = backend
        self.device = backend.device
        self.bindings = bindings

    def providers(self, provider: str) -> list[str]:
        """Names of the operators that a provider runs, sorted."""
        return sorted(n for n, binding in self.bindings.items() if binding.provider == provider)

    def tapped(self, tap: Tap) -> Operators:
        """The same table, calling `tap(operator, arguments, result)` after every operator.

        Calls that a native operator makes on its own are not seen.
        """
        table = Operators(self.backend, self.bindings)
        for name in OPERATORS:
            bound = self.__dict__.get(name) or getattr(Operators, name).__get__(table)
            setattr(table, name, _tapped(bound, name, tap))
        for service in _SERVICES:
            setattr(table, service, getattr(self, service))
        return table

    def summary(self) -> str:
        """One line for start-up: how many operators are native, composed and fallback."""
        counts = {name: len(self.providers(name)) for name in (NATIVE, COMPOSED, FALLBACK)}
        return ", ".join(f"{count} {name}" for name, count in counts.items())


_SERVICES = (
    "memory",
    "tensor",
    "pinned",
    "copy_async",
    "stream",
    "synchronise",
    "plan",
    "capture",
    "collectives",
    "workspace",
)


def _tapped(function: Callable[..., Any], operator: str, tap: Tap) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        tap(operator, args, result)
        return result

    return call


def _guarded(function: Callable[..., Any], backend: str, operator: str) -> Callable[..., Any]:
    """Turn an exception of a native operator into an error that names the backend."""

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


def resolve(
    name: str,
    backend: Backend,
    reference: Backend,
    calls: Iterable[CallSpec],
    strict: bool = False,
) -> Operators:
    """Bind every operator of the contract for the given calls.

    name: the backend's. reference: the reference on the backend's device. strict: a fallback is an
    error (DEEPINFER_STRICT_OPERATORS). Raises UnsupportedOperatorError when nothing can run a call.
    """
    by_operator: dict[str, list[CallSpec]] = {}
    for call in calls:
        if call.operator not in OPERATORS:
            raise ValueError(f"{call.operator!r} is not an operator of the contract")
        by_operator.setdefault(call.operator, []).append(call)
    native = type(backend).native_operators()
    own = backend is reference or type(backend) is type(reference)
    table = Operators(backend, {})
    for operator, kind in OPERATORS.items():
        specs = by_operator.get(operator, [])
        refusal = _refusal(backend, specs) if operator in native else "not overridden"
        if operator in native and refusal is None:
            function = getattr(backend, operator)
            setattr(table, operator, function if own else _guarded(function, name, operator))
            table.bindings[operator] = Binding(operator, kind, NATIVE)
        elif kind == "step":
            table.bindings[operator] = Binding(operator, kind, COMPOSED, refusal or "")
        else:
            table.bindings[operator] = _fall_back(
                table, name, operator, specs, reference, refusal or "", strict
            )
    for service in _SERVICES:
        setattr(table, service, getattr(backend, service))
    backend.operators = table
    if reference is not backend:
        reference.operators = table
    return table


def _refusal(backend: Backend, specs: list[CallSpec]) -> str | None:
    """Why the backend does not run all of an operator's calls itself; None when it does."""
    for spec in specs:
        support = backend.supports(spec)
        if not support.supported:
            return f"{spec}: {support.reason}"
        if support.ranges and not _covers(support.ranges, spec):
            bounds = ", ".join(f"{key} {low}..{high}" for key, (low, high) in support.ranges)
            return f"{spec}: supported only for {bounds} ({support.reason})"
    return None


def _covers(ranges: tuple[tuple[str, tuple[int, int]], ...], spec: CallSpec) -> bool:
    asked = dict(spec.ranges)
    return all(
        key in asked and low <= asked[key][0] and asked[key][1] <= high
        for key, (low, high) in ranges
    )


def _fall_back(
    table: Operators,
    name: str,
    operator: str,
    specs: list[CallSpec],
    reference: Backend,
    refusal: str,
    strict: bool,
) -> Binding:
    available = operator in type(reference).native_operators()
    reason = _refusal(reference, specs) if available else "the reference does not implement it"
    if reason is not None:
        if specs:
            raise UnsupportedOperatorError(
                f"operator {operator!r} cannot run: backend {name!r}: {refusal}; "
                f"reference: {reason}"
            )
        return Binding(operator, "primitive", MISSING, reason)
    if strict and specs:
        raise UnsupportedOperatorError(
            f"operator {operator!r} is not native to backend {name!r} ({refusal}) and "
            "DEEPINFER_STRICT_OPERATORS=1 forbids a fallback; unset it to use the reference's"
        )
    setattr(table, operator, getattr(reference, operator))
    return Binding(operator, "primitive", FALLBACK, refusal)
