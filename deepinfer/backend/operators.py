"""How the contract declares operators, and how a backend says which calls it runs.

A *primitive* has no body in the contract. A *step* is a larger operator whose default body is its
definition in smaller operators of the same contract, called through `self`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

Fact = int | float | str | bool | None
FactsOf = Callable[[Any], Mapping[str, object]]
"""Static facts of a call, read from its arguments by name; see `Declaration`."""


RANGES = ("rows", "length")
"""Names of what varies from call to call: rows, and tokens of a sequence."""


@dataclass(frozen=True)
class Declaration:
    """What the contract says of an operator beside its docstring.

    kind: "primitive" or "step". rows, length: where a call's rows and length stand in its
    arguments, as a dotted path from a parameter ("x", "a.values", "batch.max_context"): the size
    of a tensor is that of its first axis, an integer is itself; "" where the arguments do not tell.
    writes: path of the tensor that the operator writes in place; "" for none.

    facts: the static facts of its `CallSpec` as a function of the arguments, which are attributes
    of the one value that it gets; None for an operator that is listed in no model's calls. A dtype,
    a scheme or a numeric mode may be given as it is: `trace` turns it into its name. inherited:
    facts and ranges that the arguments do not show; an inner call has those of the step that makes
    it, any other call those of whoever lists it. per_sequence: there is at most one row for each
    sequence of a batch, not one for each of its tokens.
    """

    kind: str
    rows: str = ""
    length: str = ""
    writes: str = ""
    facts: FactsOf | None = None
    inherited: tuple[str, ...] = ()
    per_sequence: bool = False

    @property
    def measured(self) -> dict[str, str]:
        """Ranges of a `CallSpec` that are known at call time, with their paths."""
        paths = {"rows": self.rows, "length": self.length}
        return {name: path for name, path in paths.items() if path}

    @property
    def ranges(self) -> tuple[str, ...]:
        """Names of the ranges that a call states, whether or not its arguments show them."""
        return tuple(name for name in RANGES if name in self.measured or name in self.inherited)


def primitive(
    *,
    rows: str = "",
    length: str = "",
    writes: str = "",
    facts: FactsOf | None = None,
    inherited: tuple[str, ...] = (),
    per_sequence: bool = False,
) -> Callable[[_F], _F]:
    """Mark a method of a family as an operator without a default body; see `Declaration`."""
    return _declared(Declaration("primitive", rows, length, writes, facts, inherited, per_sequence))


def step(
    *,
    rows: str = "",
    length: str = "",
    facts: FactsOf | None = None,
    inherited: tuple[str, ...] = (),
    per_sequence: bool = False,
) -> Callable[[_F], _F]:
    """Mark a method of a family as an operator whose body is its definition."""
    return _declared(Declaration("step", rows, length, "", facts, inherited, per_sequence))


def _declared(declaration: Declaration) -> Callable[[_F], _F]:
    def mark(function: _F) -> _F:
        function.__operator__ = declaration  # type: ignore[attr-defined]
        return function

    return mark


def declaration_of(function: object) -> Declaration | None:
    """The declaration of an operator, or None when the object is no operator of the contract."""
    return getattr(function, "__operator__", None)


@dataclass(frozen=True)
class CallSpec:
    """One kind of call that the model makes, known before any weight is read.

    operator: its name. facts: what is the same in every such call (heads, widths, blocks, scales,
    top-k, dtypes, formats), sorted by name. ranges: (lowest, highest) of what varies (rows,
    lengths). step: the step whose default body makes this call, or None when the model makes it.
    """

    operator: str
    facts: tuple[tuple[str, Fact], ...] = ()
    ranges: tuple[tuple[str, tuple[int, int]], ...] = ()
    step: str | None = None

    @classmethod
    def of(
        cls,
        operator: str,
        facts: Mapping[str, Fact],
        ranges: Mapping[str, tuple[int, int]] | None = None,
        step: str | None = None,
    ) -> CallSpec:
        """Build from mappings; order of the keys does not matter."""
        return cls(
            operator, tuple(sorted(facts.items())), tuple(sorted((ranges or {}).items())), step
        )

    def fact(self, name: str) -> Fact:
        """The value of one static fact; KeyError when the call does not state it."""
        return dict(self.facts)[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "operator": self.operator,
            "facts": dict(self.facts),
            "ranges": {name: list(bounds) for name, bounds in self.ranges},
            "step": self.step,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> CallSpec:
        """The call of `to_dict`; ValueError naming what is wrong with the record."""
        operator, step = record.get("operator"), record.get("step")
        facts, ranges = record.get("facts", {}), record.get("ranges", {})
        unknown = sorted(set(record) - {"operator", "facts", "ranges", "step"})
        if unknown:
            raise ValueError(f"unknown keys: {', '.join(map(str, unknown))}")
        if not isinstance(operator, str) or not isinstance(step, str | None):
            raise ValueError(f"operator is {operator!r} and step {step!r}; both are names")
        if not isinstance(facts, Mapping) or not all(
            isinstance(value, str | int | float | None) for value in facts.values()
        ):
            raise ValueError(f"facts is {facts!r}, not names with plain values")
        if not isinstance(ranges, Mapping) or not all(map(_is_range, ranges.values())):
            raise ValueError(f"ranges is {ranges!r}, not names with [lowest, highest]")
        bounds = {name: (low, high) for name, (low, high) in ranges.items()}
        return cls.of(operator, facts, bounds, step)

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.facts)
        ranges = ", ".join(f"{name}={low}..{high}" for name, (low, high) in self.ranges)
        return f"{self.operator}({', '.join(part for part in (facts, ranges) if part)})"


def _is_range(value: object) -> bool:
    """Is it [lowest, highest], two whole numbers in order?"""
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(bound) is int for bound in value)
        and value[0] <= value[1]
    )


@dataclass(frozen=True)
class Support:
    """A backend's answer to a `CallSpec`: yes, yes for a sub-range, or no with a reason."""

    supported: bool
    reason: str = ""
    ranges: tuple[tuple[str, tuple[int, int]], ...] = ()

    @classmethod
    def yes(cls) -> Support:
        """The backend runs every call of this kind."""
        return cls(True)

    @classmethod
    def within(cls, reason: str, **ranges: tuple[int, int]) -> Support:
        """The backend runs calls whose named ranges lie inside the given bounds."""
        if not ranges:
            raise ValueError("Support.within needs at least one range, such as rows=(1, 256)")
        return cls(True, reason, tuple(sorted(ranges.items())))

    @classmethod
    def no(cls, reason: str) -> Support:
        """The backend does not run this call; the reason is shown to users."""
        if not reason:
            raise ValueError("Support.no needs a reason that a user can read")
        return cls(False, reason)
