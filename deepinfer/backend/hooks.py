"""The hooks that a plugin implements, and the records that they exchange.

A plugin is one module, registered under the entry-point group `deepinfer.backends`. Its hooks run
at start only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pluggy

from deepinfer.backend.base import Backend

PROJECT = "deepinfer"
ENTRY_POINT_GROUP = "deepinfer.backends"
CONTRACT_VERSION = (0, 1)
"""(major, minor) of this contract. While major is 0, a backend needs the same minor; later a newer
minor only adds operators with default bodies."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

HARDWARE = "hardware"


@dataclass(frozen=True)
class Mode:
    """One way in which a backend can run.

    name: value of --mode. label: words for reports. environment: variables the process must start
    with. device: torch device string. timing: whether measured time means anything. limits: bounds
    that keep test cases small, by range name.
    """

    name: str
    label: str
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    timing: bool = True
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """An environment variable of a backend's own: name, default, and what it does."""

    name: str
    default: str
    effect: str


@dataclass(frozen=True)
class BackendSpec:
    """What a plugin states about its backend.

    name: that of its entry point. modes: the first one is the default. computes: False for a
    backend whose results have the right shapes and nothing else; commands that answer prompts
    refuse it.
    """

    name: str
    contract_version: tuple[int, int]
    distribution: str
    modes: tuple[Mode, ...]
    settings: tuple[Setting, ...] = ()
    computes: bool = True

    def mode(self, name: str | None) -> Mode | None:
        """The named mode, the default one for None, or None when there is no such mode."""
        if name is None:
            return self.modes[0] if self.modes else None
        return next((mode for mode in self.modes if mode.name == name), None)


@dataclass(frozen=True)
class Availability:
    """Whether a backend can run on this machine, found out without importing anything heavy.

    rank: preference among usable backends when none is named, higher first; one with a negative
    rank must be named. reasons: why it cannot run, or what was found. remedy: what to install.
    """

    usable: bool
    rank: int = 0
    reasons: tuple[str, ...] = ()
    remedy: str = ""


class HookSpecification:
    """Hooks that a backend module implements with `deepinfer.backend.hookimpl`."""

    @hookspec(firstresult=True)
    def deepinfer_backend(self) -> BackendSpec:  # type: ignore[empty-body]
        """Name, contract version, distribution, modes and settings."""

    @hookspec(firstresult=True)
    def deepinfer_probe(self, mode: str | None) -> Availability:  # type: ignore[empty-body]
        """Availability of a mode (None: the default one) on this machine."""

    @hookspec(firstresult=True)
    def deepinfer_create(self, mode: str, device: str) -> Backend:  # type: ignore[empty-body]
        """The backend for a mode, with its operators on `device`."""
