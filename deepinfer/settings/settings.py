"""`Settings`: every environment variable of one process, read once, typed and immutable.

    settings = Settings.from_environment()
    settings.flag("DEEPINFER_STRICT_OPERATORS")

The variables are those of `catalogue` and those that backends register. `check.check` says which
values are refused or ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from deepinfer.errors import BackendContractError, UsageError
from deepinfer.settings.catalogue import VARIABLES
from deepinfer.settings.kinds import TEXT, Value
from deepinfer.settings.variables import Status, Variable

PREFIX = "DEEPINFER_"


class BackendSetting(Protocol):
    """The attributes of a backend's setting that are used here (`deepinfer.backend.Setting`)."""

    @property
    def name(self) -> str: ...

    @property
    def default(self) -> str: ...

    @property
    def effect(self) -> str: ...


class BackendSettings(Protocol):
    """The attributes of a backend that are used here (`deepinfer.backend.BackendSpec`)."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Sequence[BackendSetting]: ...


class Origin(StrEnum):
    """Where a value comes from."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Reading:
    """One variable with its value and where that comes from."""

    variable: Variable
    value: Value
    origin: Origin


def read(variable: Variable, environ: Mapping[str, str]) -> Reading:
    """Read one variable; UsageError with name, value and what is allowed."""
    text = environ.get(variable.name)
    if text is None:
        return Reading(variable, variable.default, Origin.DEFAULT)
    try:
        return Reading(variable, variable.kind.read(text), Origin.ENVIRONMENT)
    except ValueError:
        raise UsageError(
            f"{variable.name} is {text!r}; allowed: {variable.kind.allowed}; unset it for the "
            "default"
        ) from None


def known_variables(backends: Iterable[BackendSettings] = ()) -> dict[str, Variable]:
    """The core's variables and those that `backends` register, by name.

    A backend takes over a variable that has no meaning to the core, and several backends may
    register the same one. BackendContractError where a backend registers another variable of the
    core.
    """
    known = dict(VARIABLES)
    for backend in backends:
        for setting in backend.settings:
            present = known.get(setting.name)
            if present is None or present.status is Status.NO_MEANING:
                known[setting.name] = Variable(
                    setting.name,
                    TEXT if present is None else present.kind,
                    _default(setting, present),
                    Status.WORKS,
                    setting.effect,
                    owner=backend.name,
                )
            elif setting.name in VARIABLES and VARIABLES[setting.name] is present:
                raise BackendContractError(
                    f"backend {backend.name!r} registers the setting {setting.name}, which is the "
                    f"core's ({present.status}); name it otherwise, or read it as the core does"
                )
            elif backend.name not in present.owner.split(", "):
                known[setting.name] = replace(present, owner=f"{present.owner}, {backend.name}")
    return known


def _default(setting: BackendSetting, present: Variable | None) -> Value:
    """The default of a backend's setting, read by the variable's kind; "" keeps the core's."""
    if present is None:
        return setting.default or None
    if not setting.default:
        return present.default
    try:
        return present.kind.read(setting.default)
    except ValueError:
        raise BackendContractError(
            f"the default of the setting {setting.name} is {setting.default!r}; allowed: "
            f"{present.kind.allowed}"
        ) from None


def unknown_names(environ: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names with our prefix that nobody registers, sorted."""
    return sorted({name for name in environ if name.startswith(PREFIX)} - set(known))


@dataclass(frozen=True)
class Settings:
    """Values of all variables as they were when this object was made.

    readings: by name. unknown: names with our prefix that nobody registers.
    """

    readings: Mapping[str, Reading] = field(repr=False)
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str] | None = None,
        backends: Iterable[BackendSettings] = (),
    ) -> Settings:
        """Read every variable of the core and of `backends`; None: the process's environment.

        Raises one UsageError that names every variable with a value that is not allowed.
        """
        environ = dict(os.environ if environ is None else environ)
        known = known_variables(backends)
        readings: dict[str, Reading] = {}
        wrong: list[str] = []
        for name, variable in known.items():
            try:
                readings[name] = read(variable, environ)
            except UsageError as error:
                wrong.append(str(error))
        if wrong:
            raise UsageError("\n".join(wrong))
        return cls(MappingProxyType(readings), tuple(unknown_names(environ, known)))

    @classmethod
    def of(cls, name: str) -> Settings:
        """One variable of the core alone, from the process's environment; KeyError for another.

        Raises UsageError where its value is not allowed.
        """
        return cls(MappingProxyType({name: read(VARIABLES[name], os.environ)}))

    def reading(self, name: str) -> Reading:
        """The reading of a registered variable; KeyError for a name that nobody registers."""
        if name not in self.readings:
            raise KeyError(f"{name} is no registered variable")
        return self.readings[name]

    def value(self, name: str) -> Value:
        return self.reading(name).value

    def origin(self, name: str) -> Origin:
        """Where the value of a registered variable comes from."""
        return self.reading(name).origin

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise _other(name, value, "a switch")
        return value

    def integer(self, name: str) -> int:
        """The value of an integer that is never unset."""
        value = self.optional_integer(name)
        if value is None:
            raise _other(name, value, "an integer")
        return value

    def optional_integer(self, name: str) -> int | None:
        """The value of an integer, None where it is unset."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | None):
            raise _other(name, value, "an integer")
        return value

    def number(self, name: str) -> float:
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _other(name, value, "a number")
        return float(value)

    def text(self, name: str) -> str | None:
        """The value of a text, path or choice, None where it is unset or empty."""
        value = self.value(name)
        if not isinstance(value, str | None):
            raise _other(name, value, "a text")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        if not isinstance(value, tuple):
            raise _other(name, value, "a list of names")
        words = tuple(part for part in value if isinstance(part, str))
        if len(words) != len(value):
            raise _other(name, value, "a list of names")
        return words

    def token_ranges(self, name: str) -> tuple[tuple[int, int], ...]:
        """The value of a list of closed ranges of token ids."""
        value = self.value(name)
        if not isinstance(value, tuple):
            raise _other(name, value, "a list of ranges")
        ranges = tuple(part for part in value if isinstance(part, tuple))
        if len(ranges) != len(value):
            raise _other(name, value, "a list of ranges")
        return ranges


def _other(name: str, value: Value, expected: str) -> TypeError:
    """The TypeError for a variable that is registered with another kind than was expected."""
    return TypeError(f"{name} is {value!r}, not {expected}")
