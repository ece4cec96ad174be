"""Resolution: which function runs each operator, decided once at start.

Order: the backend's own; else the step's default body, its inner calls resolved by the same
table; else the reference's primitive on the backend's device. A fallback is never silent.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from deepinfer.backend.base import OPERATORS, Backend, Contract
from deepinfer.backend.device import Device
from deepinfer.backend.operators import CallSpec, Support
from deepinfer.errors import BackendContractError, DeepInferError, UnsupportedOperatorError

Tap = Callable[[str, tuple[Any, ...], Any], Any]

NATIVE = "native"
COMPOSED = "composed"
FALLBACK = "fallback"
MISSING = "missing"

NOT_OVERRIDDEN = "not overridden"

_SERVICES = tuple(
    name for name, value in vars(Device).items() if callable(value) and not name.startswith("_")
)
"""Methods of the device family: always the backend's, its own or the eager default."""

_PACKERS = {
    "pack_linear": ("linear", "grouped_linear"),
    "pack_table": ("embed", "gather"),
    "pack_experts": ("expert_mlp",),
}
"""Operators that make an opaque value, and the primitives that read it."""


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

    def __init__(
        self,
        backend: Backend,
        bindings: Mapping[str, Binding],
        functions: Mapping[str, Callable[..., Any]],
        taps: tuple[Tap, ...] = (),
    ) -> None:
        """functions: what runs each operator that is not composed. taps: see `tapped`."""
        self.backend = backend
        self.device = backend.device
        self.bindings = bindings
        self._functions = functions
        self._taps = taps
        for service in _SERVICES:
            setattr(self, service, getattr(backend, service))
        for operator in OPERATORS:
            if operator in functions:
                setattr(self, operator, functions[operator])
            if taps:
                setattr(self, operator, _tapped(getattr(self, operator), operator, taps))

    def providers(self, provider: str) -> list[str]:
        """Names of the operators that a provider runs, sorted."""
        return sorted(n for n, binding in self.bindings.items() if binding.provider == provider)

    def tapped(self, tap: Tap) -> Operators:
        """The same table, calling `tap(operator, arguments, result)` after every operator.

        Arguments are in the order of the contract's signature, however they were passed. What the
        tap returns replaces the result, unless it is None. Calls that a native operator makes on
        its own are not seen. Taps of this table stay.
        """
        return Operators(self.backend, self.bindings, self._functions, (*self._taps, tap))

    def summary(self) -> str:
        """One line for start-up: how many operators are native, composed and fallback."""
        counts = {name: len(self.providers(name)) for name in (NATIVE, COMPOSED, FALLBACK)}
        return ", ".join(f"{count} {name}" for name, count in counts.items())


def resolve(
    name: str,
    backend: Backend,
    reference: Backend,
    calls: Iterable[CallSpec],
    strict: bool = False,
) -> Operators:
    """Bind every operator of the contract for the given calls.

    name: the backend's. reference: the reference on the backend's device. strict: a fallback is an
    error (DEEPINFER_STRICT_OPERATORS). A call inside a step counts only where that step is
    composed. Raises UnsupportedOperatorError when nothing can run a call, and
    BackendContractError when `supports` raises or answers something else than `Support`.
    """
    return _Resolution(name, backend, reference, calls, strict).table()


class _Resolution:
    """One run of `resolve`; answers of the backend are kept, so that each is asked for once."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        reference: Backend,
        calls: Iterable[CallSpec],
        strict: bool,
    ) -> None:
        self.name = name
        self.backend = backend
        self.reference = reference
        self.strict = strict
        self.is_reference = backend is reference or type(backend) is type(reference)
        self.native = type(backend).native_operators()
        self._refusals: dict[str, str | None] = {}
        self._calls: dict[str, list[CallSpec]] = {}
        for call in calls:
            if call.operator not in OPERATORS:
                raise ValueError(f"{call.operator!r} is not an operator of the contract")
            if call.step is not None and OPERATORS.get(call.step) != "step":
                raise ValueError(f"{call}: {call.step!r} is not a step of the contract")
            self._calls.setdefault(call.operator, []).append(call)

    def table(self) -> Operators:
        bindings: dict[str, Binding] = {}
        functions: dict[str, Callable[..., Any]] = {}
        for operator, kind in OPERATORS.items():
            refusal = self.refusal(operator)
            if refusal is None:
                own = getattr(self.backend, operator)
                guarded = own if self.is_reference else _guarded(own, self.name, operator)
                functions[operator] = guarded
                bindings[operator] = Binding(operator, kind, NATIVE)
            elif kind == "step":
                bindings[operator] = Binding(operator, kind, COMPOSED, refusal)
            else:
                bindings[operator] = self.fall_back(operator, refusal, functions)
        self.check_packing(bindings)
        table = Operators(self.backend, bindings, functions)
        self.backend.operators = table
        self.reference.operators = table
        return table

    def live(self, operator: str) -> list[CallSpec]:
        """Calls of an operator that will be made: by the model, or by a step that is composed."""
        return [
            call
            for call in self._calls.get(operator, [])
            if call.step is None
            or (self.refusal(call.step) is not None and bool(self.live(call.step)))
        ]

    def refusal(self, operator: str) -> str | None:
        """Why the backend's own does not run an operator; None when it does."""
        if operator not in self.native:
            return NOT_OVERRIDDEN
        if operator not in self._refusals:
            self._refusals[operator] = _refusal(self.name, self.backend, self.live(operator))
        return self._refusals[operator]

    def fall_back(
        self, operator: str, refusal: str, functions: dict[str, Callable[..., Any]]
    ) -> Binding:
        """Bind a primitive that the backend does not run to the reference's."""
        calls = self.live(operator)
        if operator in type(self.reference).native_operators():
            reason = _refusal("reference", self.reference, calls)
        else:
            reason = "the reference does not implement it"
        if reason is not None:
            message = (
                f"operator {operator!r} cannot run: backend {self.name!r}: {refusal}; "
                f"reference: {reason}"
            )
            if calls:
                raise UnsupportedOperatorError(f"{message}. The model calls {calls[0]}")
            functions[operator] = _missing(message)
            return Binding(operator, "primitive", MISSING, reason)
        if self.strict and calls:
            raise UnsupportedOperatorError(
                f"operator {operator!r} is not native to backend {self.name!r} ({refusal}) and "
                "DEEPINFER_STRICT_OPERATORS=1 forbids a fallback; unset it to use the reference's. "
                f"The model calls {calls[0]}"
            )
        functions[operator] = getattr(self.reference, operator)
        return Binding(operator, "primitive", FALLBACK, refusal)

    def check_packing(self, bindings: Mapping[str, Binding]) -> None:
        """Refuse a table in which one provider would read what another one packed.

        A backend's packed values are opaque, so the reference cannot fall in for an operator that
        takes them. (The other way round a backend may call the reference through `operators`.)
        """
        for packer, readers in _PACKERS.items():
            foreign = getattr(type(self.backend), packer) is not getattr(
                type(self.reference), packer
            )
            if bindings[packer].provider != NATIVE or not foreign:
                continue
            for reader in readers:
                if bindings[reader].provider == FALLBACK and self.live(reader):
                    raise UnsupportedOperatorError(
                        f"backend {self.name!r} packs weights itself ({packer!r}), so the "
                        f"reference cannot run {reader!r} on them for it: "
                        f"{bindings[reader].reason}. A backend overrides {reader!r} for all these "
                        f"calls, or leaves {packer!r} to the reference"
                    )


def _refusal(name: str, backend: Backend, calls: Iterable[CallSpec]) -> str | None:
    """Why a backend does not run all of an operator's calls itself; None when it does."""
    for call in calls:
        support = _ask(name, backend, call)
        if not support.supported:
            return f"{call}: {support.reason}"
        if support.ranges and not _covers(support.ranges, call):
            bounds = ", ".join(f"{key} {low}..{high}" for key, (low, high) in support.ranges)
            return f"{call}: supported only for {bounds} ({support.reason})"
    return None


def _ask(name: str, backend: Backend, call: CallSpec) -> Support:
    try:
        answer: object = backend.supports(call)
    except Exception as error:
        raise BackendContractError(
            f"backend {name!r} raised in supports({call}): {type(error).__name__}: {error}. "
            "It must answer with Support.yes(), Support.within(...) or Support.no(reason)"
        ) from error
    if not isinstance(answer, Support):
        raise BackendContractError(
            f"backend {name!r} answered supports({call}) with {answer!r}, "
            "expected a deepinfer.backend.Support"
        )
    return answer


def _covers(ranges: tuple[tuple[str, tuple[int, int]], ...], call: CallSpec) -> bool:
    asked = dict(call.ranges)
    return all(
        key in asked and low <= asked[key][0] and asked[key][1] <= high
        for key, (low, high) in ranges
    )


def _missing(message: str) -> Callable[..., NoReturn]:
    """Stands for an operator that nobody has and that the model did not announce."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedOperatorError(message)

    return call


def _guarded(function: Callable[..., Any], backend: str, operator: str) -> Callable[..., Any]:
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


def _tapped(
    function: Callable[..., Any], operator: str, taps: tuple[Tap, ...]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        arguments = _positional(operator, args, kwargs) if kwargs else args
        for tap in taps:
            replacement = tap(operator, arguments, result)
            result = result if replacement is None else replacement
        return result

    return call


def _positional(operator: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    signature = inspect.signature(getattr(Contract, operator))
    return signature.bind(None, *args, **kwargs).args[1:]
