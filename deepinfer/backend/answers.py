"""What a backend answers about the calls of one operator, as one `OperatorSupport`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from deepinfer.backend.bindings import Bounds, shown
from deepinfer.backend.operators import CallSpec, Support
from deepinfer.errors import BackendContractError

Question = Callable[[CallSpec], object]


@dataclass(frozen=True)
class OperatorSupport:
    """Whether a backend runs all calls of one operator.

    refusal: why it does not; None when it does. bounds: the ranges in which it does, empty when it
    does everywhere. reason: why only in those ranges.
    """

    refusal: str | None = None
    bounds: Bounds = field(default_factory=dict)
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether every call is supported, whatever its rows and lengths."""
        return self.refusal is None and not self.bounds


def operator_support(
    name: str,
    question: Question,
    calls: Iterable[CallSpec],
    measured: Mapping[str, str],
    method: str = "supports",
) -> OperatorSupport:
    """Ask a backend about every call of one operator and combine its answers.

    name: of the backend, for errors. question: its `supports`, or the method that `method` names.
    measured: ranges that are known when the operator is called.

    The first refusal refuses the operator. Ranges of several calls are intersected, because nothing
    tells at run time which of the calls is being made. A range that is not known at run time, or of
    which nothing is left, refuses the operator too.
    """
    bounds: Bounds = {}
    reason = ""
    for call in calls:
        support = ask(name, question, call, method)
        if not support.supported:
            return OperatorSupport(f"{call}: {support.reason}")
        asked = dict(call.ranges)
        for key, (low, high) in support.ranges:
            if key in asked and low <= asked[key][0] and asked[key][1] <= high:
                continue
            limits = f"supported only for {shown(dict(support.ranges))} ({support.reason})"
            if key not in measured or key not in asked:
                return OperatorSupport(f"{call}: {limits}; {key} is not known when it is called")
            lowest, highest = bounds.get(key, asked[key])
            bounds[key] = max(low, lowest), min(high, highest)
            if bounds[key][0] > bounds[key][1]:
                return OperatorSupport(f"{call}: {limits}")
            reason = reason or f"{call}: {limits}"
    return OperatorSupport(None, bounds, reason)


def ask(name: str, question: Question, call: CallSpec, method: str = "supports") -> Support:
    """Ask about one call. BackendContractError where the method raises or returns no `Support`."""
    try:
        answer = question(call)
    except Exception as error:
        raise BackendContractError(
            f"backend {name!r} raised in {method}({call}): {type(error).__name__}: {error}. "
            "It must answer with Support.yes(), Support.within(...) or Support.no(reason)"
        ) from error
    if not isinstance(answer, Support):
        raise BackendContractError(
            f"backend {name!r} answered {method}({call}) with {answer!r}, "
            "expected a deepinfer.backend.Support"
        )
    return answer
