"""`check`: a setting that has no effect is refused or reported, never silently ignored.

A value that asks for a missing feature is an error that names the feature. A variable that this
engine has no use for, and a name with our prefix that nobody registers, give one warning each, once
per process, through the logger `deepinfer.settings`.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Iterable

from deepinfer.errors import NotBuiltYetError
from deepinfer.settings.kinds import shown
from deepinfer.settings.settings import (
    PREFIX,
    BackendSettings,
    Origin,
    Reading,
    Settings,
    known_variables,
)
from deepinfer.settings.variables import Status

logger = logging.getLogger("deepinfer.settings")

_warned: set[str] = set()
_lock = threading.Lock()


def check(settings: Settings, backend: BackendSettings | None = None) -> None:
    """Refuse or report the values that were set, for the backend that will run (None: none runs).

    Raises one NotBuiltYetError (a UsageError) that names every missing feature that is asked for;
    the warnings come first. Set up logging before, so that the warnings have its format.
    """
    own = () if backend is None else (backend,)
    known = known_variables(own)
    refused: list[str] = []
    for name, reading in settings.readings.items():
        taken = known[name].owner if name in known else ""
        if backend is not None and taken == backend.name:
            continue
        error = refusal(reading)
        if error is not None:
            refused.append(error)
        text = remark(reading, backend)
        if text is not None:
            _warn_once(name, text)
    for name in settings.unknown:
        if name not in known:
            _warn_once(name, unknown_remark(name, known, backend))
    if refused:
        raise NotBuiltYetError("\n".join(refused))


def refusal(reading: Reading) -> str | None:
    """The error for a value that asks for a missing feature; None where it does not."""
    variable = reading.variable
    if (
        reading.origin is Origin.DEFAULT
        or variable.status is not Status.NOT_BUILT
        or variable.changes_nothing(reading.value)
    ):
        return None
    default = shown(variable.default)
    return (
        f"{variable.name} is {shown(reading.value)!r}: {variable.feature} is not built yet; "
        f"unset it{f' or set {default}' if default else ''}"
    )


def remark(reading: Reading, backend: BackendSettings | None = None) -> str | None:
    """The warning about a value that has no effect; None where there is nothing to warn about."""
    variable = reading.variable
    if reading.origin is Origin.DEFAULT or variable.changes_nothing(reading.value):
        return None
    if variable.status is Status.NOT_NEEDED:
        return f"{variable.name} is ignored: not needed, {variable.feature}"
    if variable.status is Status.NO_MEANING:
        where = "to the core" if backend is None else f"on backend {backend.name!r}"
        return f"{variable.name} is ignored: it has no meaning {where}"
    return None


def unknown_remark(name: str, known: Iterable[str], backend: BackendSettings | None = None) -> str:
    """The warning about a name that nobody registers, with the nearest one that is known."""
    who = "the core" if backend is None else f"the core and to backend {backend.name!r}"
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else "`deepinfer env` lists all"
    return f"{name} is ignored: it is unknown to {who}; {hint}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name with the most similar spelling, or None where none is similar."""
    stems = {other.removeprefix(PREFIX): other for other in known}
    found = difflib.get_close_matches(name.removeprefix(PREFIX), stems, n=1)
    return stems[found[0]] if found else None


def _warn_once(name: str, text: str) -> None:
    with _lock:
        if name in _warned:
            return
        _warned.add(name)
    logger.warning(text)
