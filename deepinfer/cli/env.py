"""`deepinfer env`: lists environment variables with value, origin, owner, status and effect."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points

import typer

from deepinfer.cli.notes import note
from deepinfer.cli.options import Json
from deepinfer.errors import BackendContractError, UsageError
from deepinfer.settings import environment
from deepinfer.settings.check import refusal, remark, unknown_remark
from deepinfer.settings.kinds import Value, shown
from deepinfer.settings.settings import BackendSettings, known_variables, read, unknown_names
from deepinfer.settings.variables import Variable

GROUP = "deepinfer.backends"
CORE_DISTRIBUTION = "deepinfer-core"
UNKNOWN = "unknown"

COLUMNS = ("name", "value", "origin", "owner", "status", "effect")
WIDEST = 24  # a longer cell does not widen its column


def env(json: Json = False) -> None:
    """List every environment variable: value, origin, owner, status, effect.

    Ends with status 2 when a run would be refused for some value.
    """
    listing = list_environment()
    records = [asdict(row) for row in listing.rows]
    print(json_module.dumps(records, indent=2) if json else render(listing))
    for level, text in listing.remarks():
        note(text, level)
    raise typer.Exit(UsageError.exit_code if listing.refused else 0)


@dataclass(frozen=True)
class Row:
    """One variable. value: typed for a known variable, text for an unknown or unreadable one.

    error: why a run is refused with this value. warning: why the value has no effect.
    """

    name: str
    value: Value
    origin: str
    owner: str
    status: str
    effect: str
    type: str = ""
    default: Value = None
    error: str | None = None
    warning: str | None = None


@dataclass(frozen=True)
class Listing:
    """All rows. notes: which variables could not be listed, and why."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether a run would be refused for some value."""
        return any(row.error for row in self.rows)

    def remarks(self) -> list[tuple[str, str]]:
        """Errors, warnings and notes in this order, as pairs (log level, message)."""
        errors = [("error", f"error: {row.error}") for row in self.rows if row.error]
        warnings = [("warning", f"warning: {row.warning}") for row in self.rows if row.warning]
        return [*errors, *warnings, *(("info", f"note: {note}") for note in self.notes)]


def list_environment(environ: Mapping[str, str] | None = None) -> Listing:
    """List the variables of the core and of installed backends, and set ones that nobody knows."""
    environ = os.environ if environ is None else environ
    backends, notes = installed_backends()
    return Listing(tuple(rows(environ, backends)), tuple(notes))


def rows(environ: Mapping[str, str], backends: Sequence[BackendSettings] = ()) -> list[Row]:
    """One row per variable: those of the core, of the backends, then the unknown ones."""
    known = known_variables(backends)
    table = [_row(variable, environ) for variable in known.values()]
    for name in unknown_names(environ, known):
        table.append(
            Row(
                name,
                environ[name],
                "environment",
                "nobody",
                UNKNOWN,
                "None.",
                type="text",
                warning=unknown_remark(name, known),
            )
        )
    return table


def _row(variable: Variable, environ: Mapping[str, str]) -> Row:
    value: Value
    try:
        reading = read(variable, environ)
        value, origin = reading.value, str(reading.origin)
        error, warning = refusal(reading), remark(reading)
    except UsageError as unreadable:
        value, origin = environ[variable.name], "environment"
        error, warning = str(unreadable), None
    return Row(
        variable.name,
        value,
        origin,
        variable.owner,
        str(variable.status),
        variable.effect,
        variable.kind.name,
        variable.default,
        error,
        warning,
    )


def installed_backends() -> tuple[list[BackendSettings], list[str]]:
    """Installed backends that may have settings, and notes on those that could not be asked.

    The backends of the core's own distribution have no settings, so they are not asked: then torch
    need not be imported where no other backend is installed.
    """
    entries = entry_points(group=GROUP)
    core = {entry.name for entry in entries if _distribution(entry.dist) == CORE_DISTRIBUTION}
    skip = core | set(environment.names(environment.SKIP_BACKENDS))
    others = sorted({entry.name for entry in entries} - skip)
    if not others:
        return [], []
    try:
        from deepinfer.backend.registry import discover
    except ImportError as error:
        missing = f"the variables of {', '.join(others)} are not listed: {error}"
        return [], [missing]
    backends: list[BackendSettings] = []
    notes = []
    for backend in discover(skip):
        reason = backend.reasons()
        if backend.spec is not None:
            try:
                known_variables([backend.spec])
            except BackendContractError as error:
                reason = str(error)
            else:
                backends.append(backend.spec)
                continue
        notes.append(f"the variables of backend {backend.name!r} are not listed: {reason}")
    return backends, notes


def _distribution(distribution: object) -> str:
    return str(getattr(distribution, "name", ""))


def render(listing: Listing) -> str:
    """The rows as a text table with a line for each variable."""
    lines = [COLUMNS, *(_cells(row) for row in listing.rows)]
    widths = [
        max(len(line[column]) for line in lines if len(line[column]) <= WIDEST or column == 0)
        for column in range(len(COLUMNS))
    ]
    return "\n".join(_line(cells, widths) for cells in lines)


def _cells(row: Row) -> tuple[str, ...]:
    value = shown(row.value) or "-"
    return (row.name, value, row.origin, row.owner, row.status, row.effect)


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
