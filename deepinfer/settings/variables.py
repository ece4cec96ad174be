"""`Variable`: what is known of one environment variable, and what it does today."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from deepinfer.settings.kinds import Kind, Value

CORE = "core"


class Status(StrEnum):
    """What becomes of a value that is set.

    WORKS: it has its effect. NOT_BUILT: the feature is missing; a value that asks for it is an
    error. NO_MEANING: nothing here has what it tunes; one warning, unless the selected backend
    registers it. NOT_NEEDED: the engine does without; one warning.
    """

    WORKS = "works"
    NOT_BUILT = "not built"
    NO_MEANING = "no meaning"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True)
class Variable:
    """One environment variable.

    default: the value where it is unset. effect: one sentence. decided: its status once everything
    that is planned for it works. feature: what is missing while it does not. wired: code reads it
    and acts on it; set it in the change that does so, until then `status` is NOT_BUILT. holds:
    values that ask for nothing beyond what is so already, accepted in silence while the feature is
    missing (empty: the default; the first is in force while the variable is unset) or although
    the variable has no meaning. inert: every value is such a value. owner: "core" or the names of
    backends.
    """

    name: str
    kind: Kind
    default: Value
    effect: str
    decided: Status
    feature: str = ""
    wired: bool = False
    holds: tuple[Value, ...] = ()
    inert: bool = False
    owner: str = CORE

    @property
    def status(self) -> Status:
        """What becomes of a value today."""
        if self.decided is Status.WORKS and not self.wired:
            return Status.NOT_BUILT
        return self.decided

    @property
    def unset(self) -> Value:
        """What holds today where the variable is unset."""
        if self.status is Status.NOT_BUILT and self.holds:
            return self.holds[0]
        return self.default

    def asks_nothing(self, value: Value) -> bool:
        """Whether a value that was set asks only for what is so already."""
        if self.status is Status.WORKS or self.inert:
            return True
        if self.status is Status.NOT_BUILT and not self.holds:
            return value == self.default
        return value in self.holds


def works(
    name: str,
    kind: Kind,
    default: Value,
    effect: str,
    feature: str,
    *holds: Value,
    wired: bool = False,
) -> Variable:
    """A variable of this version. Until it is wired, it is treated as not built."""
    return Variable(name, kind, default, effect, Status.WORKS, feature, wired, holds)


def not_built(
    name: str,
    kind: Kind,
    default: Value,
    effect: str,
    feature: str,
    *holds: Value,
    inert: bool = False,
) -> Variable:
    """A variable of a feature that a later version brings."""
    return Variable(
        name, kind, default, effect, Status.NOT_BUILT, feature, holds=holds, inert=inert
    )


def no_meaning(name: str, kind: Kind, default: Value, effect: str, *holds: Value) -> Variable:
    """A variable that tunes what only some devices or libraries have. A backend may register it."""
    return Variable(name, kind, default, effect, Status.NO_MEANING, holds=holds)


def not_needed(
    name: str, kind: Kind, default: Value, effect: str, feature: str, *holds: Value
) -> Variable:
    """A variable that this engine does without; `feature` says why."""
    return Variable(name, kind, default, effect, Status.NOT_NEEDED, feature, holds=holds)
