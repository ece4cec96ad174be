"""`Operators`: all operators as they were resolved, for the model to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deepinfer.backend.base import OPERATORS, Backend, Contract
from deepinfer.backend.bindings import NATIVE, PROVIDERS, Binding
from deepinfer.backend.bounded import Bounded, Counts
from deepinfer.backend.device import Device
from deepinfer.backend.functions import Function, Tap, tapped
from deepinfer.backend.host import Capture
from deepinfer.backend.packing import Packer

_SERVICES = tuple(
    name
    for name, value in vars(Device).items()
    if callable(value) and not name.startswith("_") and name != "capture"
)
"""Methods of the device family: the backend's, its own or the eager default."""


@dataclass(frozen=True)
class Shared:
    """What a table and its tapped copies share: counts of calls, and the state of a capture."""

    counts: Counts = field(default_factory=Counts)
    capture: Capture = field(default_factory=Capture)


class Operators(Contract):
    """The resolved operators. They are instance attributes that shadow the contract's methods.

    A composed step is the contract's own body. Its `self` is this table, so its inner calls use the
    resolved operators too.
    """

    def __init__(
        self,
        backend: Backend,
        bindings: Mapping[str, Binding],
        functions: Mapping[str, Function | Bounded],
        shared: Shared,
        packers: Mapping[str, Sequence[Packer]],
        taps: tuple[Tap, ...] = (),
    ) -> None:
        """functions: what runs each operator that is not composed. packers: what packs each kind of
        weight, several where it is packed more than once. taps: see `tapped`.
        """
        self.backend = backend
        self.device = backend.device
        self.bindings = bindings
        self.packers = packers
        self._functions = functions
        self._shared = shared
        self._taps = taps
        for service in _SERVICES:
            setattr(self, service, getattr(backend, service))
        for operator in OPERATORS:
            function = functions.get(operator)
            if isinstance(function, Bounded):
                function = function.on(self)
            if function is not None:
                setattr(self, operator, function)
            if taps:
                setattr(self, operator, tapped(getattr(self, operator), operator, taps))

    def capture(self, function: Callable[[], None]) -> Callable[[], None] | None:
        """The backend's capture; an operator of the host inside it is an error."""
        return self.backend.capture(self._shared.capture.watched(function))

    def providers(self, provider: str) -> list[str]:
        """Names of the operators that a provider runs, sorted.

        An operator with bounds counts for the provider inside them.
        """
        return sorted(n for n, binding in self.bindings.items() if binding.provider == provider)

    def bounded(self) -> list[Binding]:
        """Bindings of operators that are native within bounds only, by name."""
        return [self.bindings[name] for name in sorted(self.bindings) if self.bindings[name].bounds]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Calls so far by operator and provider: of operators with bounds, and of the host's."""
        found: dict[str, dict[str, int]] = {}
        for (operator, provider), count in sorted(self._shared.counts.items()):
            found.setdefault(operator, {})[provider] = count
        return found

    def tapped(self, tap: Tap) -> Operators:
        """A copy that calls `tap(operator, arguments, result)` after every operator.

        Arguments are in the order of the contract's signature, however they were passed. What the
        tap returns replaces the result, unless it is None. Calls inside a native operator are not
        seen. Taps of this table are kept.
        """
        taps = (*self._taps, tap)
        return Operators(
            self.backend, self.bindings, self._functions, self._shared, self.packers, taps
        )

    def summary(self) -> str:
        """One line: how many operators each provider runs."""
        counts = {name: len(self.providers(name)) for name in PROVIDERS}
        bounded = len(self.bounded())
        partly = f" ({bounded} in a sub-range)" if bounded else ""
        return ", ".join(
            f"{count} {name}{partly if name == NATIVE else ''}" for name, count in counts.items()
        )
