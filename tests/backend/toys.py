"""Backends whose operators only say who ran them: the value of a call is "BACKEND.OPERATOR"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from deepinfer.backend import OPERATORS, Backend, CallSpec, Support
from deepinfer.backend.resolution import Operators, resolve

PRIMITIVES = sorted(name for name, kind in OPERATORS.items() if kind == "primitive")
STEPS = sorted(name for name, kind in OPERATORS.items() if kind == "step")

Answers = Callable[[CallSpec], Any]


@dataclass
class Toys:
    """A backend `chip` and a reference, with a log of who ran what in order."""

    log: list[str] = field(default_factory=list)

    def backend(
        self,
        name: str,
        operators: Iterable[str],
        supports: Answers | None = None,
        **bodies: Callable[..., Any],
    ) -> Backend:
        """A backend that overrides `operators`, and `bodies` with functions of its own."""
        members: dict[str, Any] = {one: self._recorder(name, one) for one in operators}
        members |= bodies
        if supports is not None:
            members["supports"] = lambda backend, call: supports(call)
        made: Backend = type(name, (Backend,), members)("cpu")
        return made

    def reference(self, without: Iterable[str] = (), supports: Answers | None = None) -> Backend:
        """A reference of all primitives, less some."""
        return self.backend("reference", set(PRIMITIVES) - set(without), supports)

    def resolve(
        self,
        backend: Backend,
        calls: Iterable[CallSpec] = (),
        strict: bool = False,
        reference: Backend | None = None,
    ) -> Operators:
        return resolve("chip", backend, reference or self.reference(), calls, strict)

    def _recorder(self, name: str, operator: str) -> Callable[..., str]:
        def run(backend: Backend, *args: object, **kwargs: object) -> str:
            self.log.append(f"{name}.{operator}")
            return f"{name}.{operator}"

        return run


def norm_calls(rows: int = 8) -> list[CallSpec]:
    """The calls of a model that only ever norms and quantises."""
    ranges = {"rows": (1, rows)}
    return [
        CallSpec.of("norm_quantise", {"width": 64}, ranges),
        CallSpec.of("rms_norm", {"width": 64}, ranges, "norm_quantise"),
        CallSpec.of("quantise", {"width": 64}, ranges, "norm_quantise"),
    ]


def no_to(operator: str, reason: str = "not on this chip") -> Answers:
    """`supports` that refuses one operator."""
    return lambda call: Support.no(reason) if call.operator == operator else Support.yes()
