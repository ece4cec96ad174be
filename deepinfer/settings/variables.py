"""`Variable`: what is known of one environment variable, and what becomes of a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from deepinfer.settings.kinds import Kind, Value

CORE = "core"


class Status(StrEnum):
    """What becomes of a value that is set.

    WORKS: code reads it and acts on it. NO_EFFECT: every value is accepted, and none changes
    anything. NOT_BUILT: the feature is missing, so any value but the default is an error.
    NO_MEANING: it tunes something that the core does not have, so it is ignored with one warning,
    unless the selected backend registers it. NOT_NEEDED: the engine works without it, so it is
    ignored with one warning.
    """

    WORKS = "works"
    NO_EFFECT = "no effect"
    NOT_BUILT = "not built"
    NO_MEANING = "no meaning"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    default: the value in force while the variable is unset. effect: one sentence. feature: what is
    not built, or why the variable is not needed. owner: "core" or the names of backends.
    """

    name: str
    kind: Kind
    default: Value
    status: Status
    effect: str
    feature: str = ""
    owner: str = CORE

    def changes_nothing(self, value: Value) -> bool:
        """Whether the engine does what this value asks for, although its feature is missing.

        That is so for the default of a feature that is not built. An ignored variable warns even at
        its default, unless the default switches something off.
        """
        match self.status:
            case Status.WORKS | Status.NO_EFFECT:
                return True
            case Status.NOT_BUILT:
                return value == self.default
            case Status.NO_MEANING | Status.NOT_NEEDED:
                return value == self.default == 0


Row = tuple[str, Kind, Value, str]
"""Name, kind, default and effect of a variable."""


def works(*rows: Row) -> list[Variable]:
    """Variables whose value has its effect."""
    return _variables(Status.WORKS, rows)


def no_effect(*rows: Row) -> list[Variable]:
    """Variables that are accepted without effect: the engine does the same for every value."""
    return _variables(Status.NO_EFFECT, rows)


def not_built(feature: str, *rows: Row) -> list[Variable]:
    """Variables of a feature that a later version brings."""
    return _variables(Status.NOT_BUILT, rows, feature)


def no_meaning(*rows: Row) -> list[Variable]:
    """Variables that tune what only some devices or libraries have. A backend may register one."""
    return _variables(Status.NO_MEANING, rows)


def not_needed(reason: str, *rows: Row) -> list[Variable]:
    """Variables of the vendor's engine that this engine works without."""
    return _variables(Status.NOT_NEEDED, rows, reason)


def _variables(status: Status, rows: Iterable[Row], feature: str = "") -> list[Variable]:
    return [
        Variable(name, kind, default, status, effect, feature)
        for name, kind, default, effect in rows
    ]
