"""Which backends are installed, which is selected, and why one is not usable.

`DEEPINFER_ACCELERATOR=name` loads that entry point alone; unset, the usable backend with the
highest rank is taken. A named backend that is not usable is an error, never another backend.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

import pluggy

from deepinfer.backend.base import Backend
from deepinfer.backend.declarations import check_declarations
from deepinfer.backend.hooks import (
    CONTRACT_VERSION,
    ENTRY_POINT_GROUP,
    PROJECT,
    Availability,
    BackendSpec,
    HookSpecification,
    Mode,
)
from deepinfer.backend.origin import Origin
from deepinfer.errors import BackendContractError, BackendUnavailableError, UsageError
from deepinfer.settings.environment import ACCELERATOR, SKIP_BACKENDS

REFERENCE = "reference"


@dataclass(frozen=True)
class Installed:
    """One installed backend plugin: loaded, or with the error that its loading raised."""

    name: str
    distribution: str
    spec: BackendSpec | None = None
    availability: Availability | None = None
    error: str = ""
    hooks: pluggy.HookRelay | None = field(default=None, compare=False, repr=False)
    origins: tuple[Origin, ...] = ()

    @property
    def origin(self) -> str:
        """Distribution, version and file; those of every plugin where several have the name."""
        return "; ".join(str(origin) for origin in self.origins)

    @property
    def usable(self) -> bool:
        """Whether it is loaded, has the right contract version, and can run on this machine."""
        return self.availability is not None and self.availability.usable

    def reasons(self) -> str:
        """One line that says why it is not usable, and what to do."""
        if self.error:
            return self.error.strip().splitlines()[-1]
        if self.availability is None:
            return "not loaded"
        parts = [*self.availability.reasons]
        if self.availability.remedy and not self.availability.usable:
            parts.append(self.availability.remedy)
        return "; ".join(parts)


@dataclass(frozen=True)
class Selected:
    """The backend that will run: its specification, its mode, and how it was chosen."""

    spec: BackendSpec
    mode: Mode
    reason: str
    hooks: pluggy.HookRelay = field(compare=False, repr=False)
    origin: str = field(default="", compare=False)

    def create(self, device: str | None = None) -> Backend:
        """Build the backend on the mode's device, or on another one.

        Raises BackendContractError for an exception in the plugin, for a result that is no
        `Backend`, and for a declared operator that the contract does not have. The error names the
        plugin and its origin.
        """
        who = f"backend {self.spec.name!r} ({self.origin or self.spec.distribution})"
        try:
            backend = self.hooks.deepinfer_create(
                mode=self.mode.name, device=device or self.mode.device
            )
        except (Exception, SystemExit) as error:
            raise BackendContractError(
                f"{who} raised in deepinfer_create: {type(error).__name__}: {error}. Expected: a "
                "deepinfer.backend.Backend for every mode whose probe says usable"
            ) from error
        if not isinstance(backend, Backend):
            raise BackendContractError(
                f"{who}: deepinfer_create returned {type(backend).__name__}, expected a "
                "deepinfer.backend.Backend"
            )
        check_declarations(backend, who)
        return backend


def installed_entry_points(skip: Iterable[str] = ()) -> dict[str, list[EntryPoint]]:
    """Entry points of the group by name; the same name twice keeps both."""
    skipped = set(skip)
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name not in skipped:
            found.setdefault(entry.name, []).append(entry)
    return found


def _manager(name: str, module: object) -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecification)
    manager.register(module, name=name)
    manager.check_pending()
    return manager


def load(name: str, entries: list[EntryPoint], mode: str | None = None) -> Installed:
    """Load one backend's entry point, check its contract version and probe it.

    Never raises for a broken plugin: the error is kept in the result.
    """
    origins = tuple(Origin.of(entry) for entry in entries)
    distribution = ", ".join(sorted({origin.distribution for origin in origins}))
    if len(entries) > 1:
        return Installed(
            name,
            distribution,
            error=f"{len(entries)} entry points register a backend named {name!r}, of "
            f"{distribution}; expected one: uninstall all but one",
            origins=origins,
        )
    try:
        manager = _manager(name, entries[0].load())
        spec = _checked(name, manager.hook.deepinfer_backend())
        if spec.mode(mode) is None:
            availability: object = Availability(False, reasons=(_no_mode(spec, mode),))
        else:
            availability = manager.hook.deepinfer_probe(mode=mode)
        if not isinstance(availability, Availability):
            raise BackendContractError(
                f"deepinfer_probe returned {type(availability).__name__}, expected Availability"
            )
    except BackendContractError as error:
        return Installed(name, distribution, error=str(error), origins=origins)
    except (Exception, SystemExit):  # a plugin may not end the process either
        return Installed(name, distribution, error=traceback.format_exc(), origins=origins)
    return Installed(name, distribution, spec, availability, hooks=manager.hook, origins=origins)


def _checked(name: str, spec: object) -> BackendSpec:
    """The backend's specification; BackendContractError where it is not one of this contract."""
    if not isinstance(spec, BackendSpec):
        raise BackendContractError(
            f"deepinfer_backend returned {type(spec).__name__}, expected BackendSpec"
        )
    _check_version(spec)
    if spec.name != name:
        raise BackendContractError(
            f"the backend calls itself {spec.name!r} and its entry point is named {name!r}; "
            "both must be equal"
        )
    if not spec.modes:
        raise BackendContractError("deepinfer_backend names no mode; name at least one")
    return spec


def _check_version(spec: BackendSpec) -> None:
    """Require a contract that this core serves.

    While the major version is 0, a minor version may change signatures, so only the same one will
    do. From 1.0 on an older minor version lacks operators with default bodies and nothing else.
    """
    try:
        major, minor = (int(part) for part in spec.contract_version)
    except (TypeError, ValueError):
        raise BackendContractError(
            f"backend {spec.name!r} states contract version {spec.contract_version!r}, "
            "expected (major, minor)"
        ) from None
    theirs, ours = f"{major}.{minor}", ".".join(str(part) for part in CONTRACT_VERSION)
    unlike = ""
    if major != CONTRACT_VERSION[0]:
        unlike = "another major version"
    elif major == 0 and minor != CONTRACT_VERSION[1]:
        unlike = "another minor version, while the major version is 0,"
    if unlike:
        raise BackendContractError(
            f"backend {spec.name!r} was built for operator contract {theirs}, this DeepInfer has "
            f"{ours}: {unlike} cannot be used; install a matching {spec.distribution}"
        )
    if minor > CONTRACT_VERSION[1]:
        raise BackendContractError(
            f"backend {spec.name!r} needs operator contract {theirs}, this DeepInfer has {ours}; "
            "update deepinfer-core"
        )


def discover(skip: Iterable[str] = (), mode: str | None = None) -> list[Installed]:
    """Every installed backend, loaded and probed, by name."""
    found = installed_entry_points(skip)
    return [load(name, found[name], mode) for name in sorted(found)]


def _others(name: str, skip: Iterable[str]) -> str:
    return _listed(discover({*skip, name}))


def _listed(backends: Iterable[Installed]) -> str:
    lines = []
    for backend in backends:
        state = "usable" if backend.usable else f"not usable: {backend.reasons()}"
        lines.append(f"  {backend.name}: {state}")
    return "\n".join(lines) if lines else "  (none)"


def _fault(backend: Installed) -> str:
    """Which plugin could not be loaded, where it is from, why, and what a plugin has to supply."""
    expected = ""
    if backend.error.startswith("Traceback"):
        expected = (
            "Expected: a module with the hooks deepinfer_backend, deepinfer_probe and "
            "deepinfer_create that can be imported and probed on any machine; what needs the "
            "device is imported in deepinfer_create.\n"
        )
    return (
        f"backend {backend.name!r} ({backend.origin}) could not be loaded:\n"
        f"{backend.error.rstrip()}\n{expected}"
    )


def _skipping(skip: Iterable[str], names: Iterable[str]) -> str:
    """How to set the variable that skips `names` beside those that are skipped already."""
    return f"{SKIP_BACKENDS}={','.join([*skip, *names])}"


def select_backend(
    name: str | None, mode: str | None = None, skip: Iterable[str] = (), require: bool = True
) -> Selected:
    """Choose the backend to run.

    name: value of --accelerator or DEEPINFER_ACCELERATOR; None or "" chooses the best usable one.
    mode: value of --mode. Raises UsageError for an unknown mode, BackendUnavailableError or
    BackendContractError otherwise, with what is missing and what else is installed. With
    `require` False an unusable backend is returned all the same (to compile ahead of time).
    """
    if not name:
        return _best(mode, skip)
    skip = tuple(skip)
    if name in skip:
        raise UsageError(
            f"accelerator {name!r} is named and, by {SKIP_BACKENDS}={','.join(skip)}, skipped; "
            "do one of the two"
        )
    found = installed_entry_points(skip)
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise BackendUnavailableError(
            f"accelerator {name!r} is not installed. Installed: {known}. Install its distribution "
            f"(./build.sh with {ACCELERATOR}={name} for a first-party backend) or choose another."
        )
    backend = load(name, found[name], mode)
    if backend.error:
        raise BackendContractError(
            f"{_fault(backend)}"
            f"To start without it, unset {ACCELERATOR} and set {_skipping(skip, [name])}. "
            f"Other backends:\n{_others(name, skip)}"
        )
    assert backend.spec is not None
    assert backend.availability is not None
    chosen = _mode(backend.spec, mode)
    if require and not backend.availability.usable:
        reasons = "\n".join(f"  - {reason}" for reason in backend.availability.reasons)
        remedy = f"\n{backend.availability.remedy}" if backend.availability.remedy else ""
        raise BackendUnavailableError(
            f"accelerator {name!r} is not usable on this machine:\n{reasons}{remedy}\n"
            f"Other backends:\n{_others(name, skip)}"
        )
    assert backend.hooks is not None
    return Selected(backend.spec, chosen, f"{ACCELERATOR}={name}", backend.hooks, backend.origin)


def _best(mode: str | None, skip: Iterable[str]) -> Selected:
    skip = tuple(skip)
    candidates = discover(skip, mode)
    broken = [backend for backend in candidates if backend.error]
    if broken:
        errors = "".join(_fault(backend) for backend in broken)
        raise BackendContractError(
            f"{errors}To skip it set {_skipping(skip, [backend.name for backend in broken])}, "
            f"or name a backend with {ACCELERATOR}."
        )
    specs = [backend.spec for backend in candidates if backend.spec is not None]
    if specs and all(spec.mode(mode) is None for spec in specs):
        modes = "; ".join(_no_mode(spec, mode) for spec in specs)
        raise UsageError(f"no installed backend has the mode {mode!r}: {modes}")
    usable = [
        backend
        for backend in candidates
        if backend.availability is not None
        and backend.availability.usable
        and backend.availability.rank >= 0
    ]
    if not usable:
        raise BackendUnavailableError(
            "no installed accelerator backend can be chosen by itself on this machine; name one "
            f"with {ACCELERATOR}. Installed:\n{_listed(candidates)}"
        )
    usable.sort(key=lambda backend: (-_rank(backend), backend.name))
    best = usable[0]
    assert best.spec is not None
    assert best.hooks is not None
    return Selected(best.spec, _mode(best.spec, mode), "best available", best.hooks, best.origin)


def _rank(backend: Installed) -> int:
    return backend.availability.rank if backend.availability is not None else 0


def _mode(spec: BackendSpec, mode: str | None) -> Mode:
    chosen = spec.mode(mode)
    if chosen is None:
        raise UsageError(_no_mode(spec, mode))
    return chosen


def _no_mode(spec: BackendSpec, mode: str | None) -> str:
    allowed = ", ".join(known.name for known in spec.modes)
    return f"backend {spec.name!r} has no mode {mode!r}; its modes are: {allowed}"


def refuse_null(selected: Selected, allowed: bool | None) -> None:
    """UsageError for a backend that computes nothing, unless the user allowed one.

    allowed: None where the user has no way to allow it.
    """
    if not (selected.spec.computes or allowed):
        remedy = "" if allowed is None else ", or pass --allow-null (allow_null=True)"
        raise UsageError(
            f"backend {selected.spec.name!r} computes nothing: it measures the engine alone and "
            f"its answers mean nothing. Choose another with {ACCELERATOR}{remedy}"
        )


def reference_for(selected: Selected, backend: Backend) -> Backend:
    """The reference on the backend's device; the backend itself where it is the reference."""
    if selected.spec.name == REFERENCE:
        return backend
    return select_backend(REFERENCE, require=False).create(str(backend.device))


def host_reference() -> Backend:
    """The reference on the host, for what a device cannot run."""
    return select_backend(REFERENCE, require=False).create("cpu")
