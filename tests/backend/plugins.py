"""Backend plugins made inside a test: modules with hooks, and entry points that load them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from deepinfer.backend import CONTRACT_VERSION, Availability, Backend, BackendSpec, Mode, hookimpl

HARDWARE = Mode("hardware", "a chip", "cpu")


def spec(name: str, **changes: Any) -> BackendSpec:
    """A valid specification of one mode, with changes."""
    values: dict[str, Any] = {
        "name": name,
        "contract_version": CONTRACT_VERSION,
        "distribution": f"dist-{name}",
        "modes": (HARDWARE,),
    }
    return BackendSpec(**(values | changes))


def plugin(
    name: str,
    *,
    answer: object = None,
    availability: object = None,
    create: Callable[[str, str], object] | None = None,
    hooks: dict[str, Callable[..., Any]] | None = None,
) -> ModuleType:
    """A backend module with the three hooks, usable at rank 0 unless something else is given.

    hooks: functions that replace or join them, by attribute name.
    """
    module = ModuleType(f"plugin_{name}")

    @hookimpl
    def deepinfer_backend() -> object:
        return spec(name) if answer is None else answer

    @hookimpl
    def deepinfer_probe() -> object:
        return Availability(True) if availability is None else availability

    @hookimpl
    def deepinfer_create(mode: str, device: str) -> object:
        return create(mode, device) if create is not None else Backend(device)

    made: dict[str, Callable[..., Any]] = {
        "deepinfer_backend": deepinfer_backend,
        "deepinfer_probe": deepinfer_probe,
        "deepinfer_create": deepinfer_create,
    }
    for attribute, function in (made | (hooks or {})).items():
        setattr(module, attribute, function)
    return module


@dataclass
class FakeEntry:
    """An entry point of a distribution `dist-NAME`; counts how often it is loaded.

    module: what loading gives, or the exception that it raises.
    """

    name: str
    module: object
    distribution: str = ""
    loads: int = field(default=0)

    @property
    def dist(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.distribution or f"dist-{self.name}", version="1.5")

    @property
    def value(self) -> str:
        return f"chip_{self.name}"

    def load(self) -> object:
        self.loads += 1
        if isinstance(self.module, BaseException):
            raise self.module
        return self.module


def entry(name: str, **arguments: Any) -> FakeEntry:
    """A `plugin` of that name behind an entry point."""
    return FakeEntry(name, plugin(name, **arguments))


def write_distribution(folder: Path, name: str, entry_points: dict[str, str]) -> None:
    """The metadata of an installed distribution: its backends, as name = module."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{backend} = {module}" for backend, module in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[deepinfer.backends]", *lines, ""]))


@contextmanager
def forgotten_afterwards() -> Iterator[None]:
    """Modules of written plugins that are imported meanwhile are forgotten at the end."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if name.startswith("chip_"):
                del sys.modules[name]


PLUGIN_SOURCE = """
from deepinfer.backend import (
    CONTRACT_VERSION, Availability, Backend, BackendSpec, Mode, hookimpl,
)

@hookimpl
def deepinfer_backend():
    return BackendSpec("{name}", CONTRACT_VERSION, "dist-{name}", ({modes}))

@hookimpl
def deepinfer_probe():
    return Availability(True, {rank}, ("found",))

@hookimpl
def deepinfer_create(mode, device):
    return Backend(device)
"""


def write_plugin(
    folder: Path, name: str, rank: int = 0, modes: str = 'Mode("hardware", "a chip", "cpu"),'
) -> None:
    """An installed distribution `dist-NAME` with the backend NAME in module `chip_NAME`."""
    write_distribution(folder, f"dist-{name}", {name: f"chip_{name}"})
    source = PLUGIN_SOURCE.format(name=name, rank=rank, modes=modes)
    (folder / f"chip_{name}.py").write_text(source)
