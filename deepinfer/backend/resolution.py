"""Resolution: which function runs each operator, decided once at start.

The first of these that can run an operator is bound: the backend's own; the step's default body,
whose inner calls are resolved in the same way; the reference's primitive on the backend's device;
the same on the host, with copies. An operator that the backend runs within bounds is its own there,
and the next one in this order runs it outside. Every fallback is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from deepinfer.backend.answers import OperatorSupport, Question, operator_support
from deepinfer.backend.base import DECLARATIONS, OPERATORS, Backend
from deepinfer.backend.bindings import (
    COMPOSED,
    FALLBACK,
    HOST,
    MISSING,
    NATIVE,
    NOT_OVERRIDDEN,
    PROVIDERS,
    Binding,
)
from deepinfer.backend.bounded import Bounded
from deepinfer.backend.functions import Function, Tap, guarded, missing
from deepinfer.backend.host import Twins, on_host
from deepinfer.backend.operator_table import Operators, Shared
from deepinfer.backend.operators import CallSpec
from deepinfer.backend.packing import PACKERS, Packer, host_packers, unreadable
from deepinfer.errors import UnsupportedOperatorError

__all__ = [
    "COMPOSED",
    "FALLBACK",
    "HOST",
    "MISSING",
    "NATIVE",
    "NOT_OVERRIDDEN",
    "PROVIDERS",
    "Binding",
    "Operators",
    "Tap",
    "resolve",
]

Host = Callable[[], Backend]


def resolve(
    name: str,
    backend: Backend,
    reference: Backend,
    calls: Iterable[CallSpec],
    strict: bool = False,
    host: Host | None = None,
) -> Operators:
    """Bind every operator of the contract for the given calls.

    name: the backend's. reference: the reference on the backend's device. strict: a call that the
    reference would run is an error (DEEPINFER_STRICT_OPERATORS). host: makes the reference on the
    host when it is needed; with None a call that the device refuses has no provider. A call inside
    a step counts only where that step is composed.

    Raises UnsupportedOperatorError, naming every such call, when nothing can run one, or when
    strict; BackendContractError when `supports` raises or does not return a `Support`.
    """
    return _Resolution(name, backend, reference, calls, strict, host).operators()


class _Resolution:
    """One run of `resolve`. Answers are kept, so that the backend is asked about a call once."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        reference: Backend,
        calls: Iterable[CallSpec],
        strict: bool,
        host: Host | None,
    ) -> None:
        self.name = name
        self.backend = backend
        self.reference = reference
        self.strict = strict
        self.is_reference = backend is reference or type(backend) is type(reference)
        self.native = type(backend).native_operators()
        self.shared = Shared()
        self.twins = Twins()
        self._make_host = host
        self._host: Backend | None = None
        self._support: dict[str, OperatorSupport] = {}
        self._calls: dict[str, list[CallSpec]] = {}
        self._unsupported: list[str] = []
        for call in calls:
            if call.operator not in OPERATORS:
                raise ValueError(f"{call.operator!r} is not an operator of the contract")
            if call.step is not None and OPERATORS.get(call.step) != "step":
                raise ValueError(f"{call}: {call.step!r} is not a step of the contract")
            self._calls.setdefault(call.operator, []).append(call)

    def operators(self) -> Operators:
        bindings: dict[str, Binding] = {}
        functions: dict[str, Function | Bounded] = {}
        for operator in OPERATORS:
            binding, function = self.bind(operator)
            bindings[operator] = replace(binding, is_called=self.is_live(operator))
            if function is not None:
                functions[operator] = function
        if self._unsupported:
            raise UnsupportedOperatorError("\n".join(self._unsupported))
        if self.strict:
            self.refuse_fallbacks(bindings)
        self.bind_packers(bindings, functions)
        operators = Operators(
            self.backend, bindings, functions, self.shared, self.packers(bindings)
        )
        self.backend.operators = operators
        self.reference.operators = operators
        return operators

    def live(self, operator: str) -> list[CallSpec]:
        """Calls of an operator that will be made: by the model, or by a step that is composed."""
        return [
            call
            for call in self._calls.get(operator, [])
            if call.step is None
            or (not self.support(call.step).is_whole and bool(self.live(call.step)))
        ]

    def is_live(self, operator: str) -> bool:
        """Whether the model or a composed step calls the operator."""
        return bool(self.live(operator))

    def support(self, operator: str) -> OperatorSupport:
        """What the backend answers about the calls of its own operator."""
        if operator not in self._support:
            self._support[operator] = (
                self.asked(self.name, self.backend.supports, operator)
                if operator in self.native
                else OperatorSupport(NOT_OVERRIDDEN)
            )
        return self._support[operator]

    def asked(
        self, name: str, question: Question, operator: str, method: str = "supports"
    ) -> OperatorSupport:
        measured = DECLARATIONS[operator].measured
        return operator_support(name, question, self.live(operator), measured, method)

    def bind(self, operator: str) -> tuple[Binding, Function | Bounded | None]:
        """The provider of an operator, and its function; None for a step's default body."""
        support, kind = self.support(operator), OPERATORS[operator]
        if support.is_whole:
            return Binding(operator, kind, NATIVE), self.own(operator)
        reason = support.refusal or support.reason
        if kind == "step":
            other, function = Binding(operator, kind, COMPOSED, reason), None
        else:
            other, function = self.fall_back(operator, reason)
        if support.refusal is not None:
            return other, function
        bounds = tuple(sorted(support.bounds.items()))
        binding = Binding(operator, kind, NATIVE, reason, bounds, other.provider)
        inside, counts = self.own(operator), self.shared.counts
        return binding, Bounded(operator, support.bounds, inside, function, other.provider, counts)

    def own(self, operator: str) -> Function:
        own: Function = getattr(self.backend, operator)
        return own if self.is_reference else guarded(own, self.name, operator)

    def fall_back(self, operator: str, refusal: str) -> tuple[Binding, Function]:
        """Bind a primitive to the reference, on the device or else on the host."""
        here = self.reference_refusal(operator, self.reference, self.backend.supports_reference)
        if here is None:
            function = getattr(self.reference, operator)
            return Binding(operator, "primitive", FALLBACK, refusal), function
        there = None
        if self._make_host is not None:
            there = self.reference_refusal(operator, self.host())
            if there is None:
                reason = f"{refusal}; reference: {here}"
                return Binding(operator, "primitive", HOST, reason), on_host(
                    operator,
                    getattr(self.host(), operator),
                    self.backend,
                    self.twins,
                    self.shared.capture,
                    self.shared.counts,
                )
        message = (
            f"operator {operator!r} cannot run: backend {self.name!r}: {refusal}; reference: {here}"
        )
        if there not in (None, here):
            message += f"; on the host: {there}"
        calls = self.live(operator)
        if calls:
            self._unsupported.append(f"{message}. The model calls {calls[0]}")
        return Binding(operator, "primitive", MISSING, here), missing(message)

    def reference_refusal(
        self, operator: str, reference: Backend, device: Question | None = None
    ) -> str | None:
        """Why the reference or the device refuses an operator's calls; None if neither does."""
        if operator not in type(reference).native_operators():
            return "the reference does not implement it"
        support = OperatorSupport()
        if device is not None:
            support = self.asked(self.name, device, operator, "supports_reference")
        if support.is_whole:
            support = self.asked("reference", reference.supports, operator)
        return support.refusal or support.reason or None

    def host(self) -> Backend:
        """The reference on the host."""
        if self._host is None:
            assert self._make_host is not None
            self._host = self._make_host()
        return self._host

    def refuse_fallbacks(self, bindings: dict[str, Binding]) -> None:
        """Raise one error that names every call of the model that the reference would run."""
        lines = []
        for operator, binding in bindings.items():
            if not binding.lacks:
                continue
            host = HOST in binding.providers
            lines.append(
                f"  operator {operator!r} is not native ({binding.reason}); the reference would "
                f"run it{' on the host' if host else ''}"
                f"{' outside that range' if binding.bounds else ''}. The model calls "
                f"{self.live(operator)[0]}"
            )
        if lines:
            raise UnsupportedOperatorError(
                f"DEEPINFER_STRICT_OPERATORS=1 forbids a fallback, and backend {self.name!r} has "
                f"{len(lines)}; unset it to use them:\n" + "\n".join(lines)
            )

    def bind_packers(
        self, bindings: dict[str, Binding], functions: dict[str, Function | Bounded]
    ) -> None:
        """Make sure that every reader of a packed value is of the provider that packed it."""
        wrong = unreadable(self.name, self.backend, self.reference, bindings, self.is_live)
        if wrong:
            raise UnsupportedOperatorError(wrong)
        for packer, alone in host_packers(bindings, self.is_live).items():
            pack: Function = getattr(self.host(), packer)
            if alone:
                reason = "all that it packs is read on the host"
                bindings[packer] = replace(bindings[packer], provider=HOST, reason=reason)
                functions[packer] = pack
                continue
            own = functions[packer]
            assert not isinstance(own, Bounded)  # no call of a packer has a range
            bindings[packer] = replace(bindings[packer], remainder=HOST)
            functions[packer] = self.twins.packer(own, pack)

    def packers(self, bindings: dict[str, Binding]) -> dict[str, list[Packer]]:
        """The packers of each packing operator. Vectors that the host packs stay on the device."""
        found: dict[str, list[Packer]] = {}
        for operator in PACKERS:
            for provider in bindings[operator].providers:
                if provider == HOST and operator != "pack_vector":
                    found.setdefault(operator, []).append(Packer(HOST, self.host()))
                elif provider != MISSING:
                    own = self.backend if provider == NATIVE else self.reference
                    found.setdefault(operator, []).append(Packer(provider, own))
        return found
