"""Which provider packs weights: only the provider that packed a value knows its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from deepinfer.backend.base import FAMILIES, OPERATORS, Backend
from deepinfer.backend.bindings import FALLBACK, HOST, NATIVE, Binding
from deepinfer.backend.values import PackedExperts, PackedLinear, PackedTable


def _readers() -> dict[str, tuple[str, ...]]:
    """Packers with the primitives that take what they return, by the types of the signatures."""
    signatures = {
        name: dict(function.__annotations__)
        for family in FAMILIES.values()
        for name, function in vars(family).items()
        if OPERATORS.get(name) == "primitive"
    }
    returned = {name: types.pop("return") for name, types in signatures.items()}
    return {
        packer: tuple(name for name, types in signatures.items() if made in types.values())
        for packer, made in returned.items()
        if made in PACKED
    }


PACKED = (PackedLinear.__name__, PackedTable.__name__, PackedExperts.__name__)
"""Types of packed values, which only the provider that packed them can read."""

READERS = _readers()
"""Operators that make a packed value, and the primitives that read it."""

PACKERS = ("pack_vector", *READERS)
"""Operators that take weights."""

Live = Callable[[str], bool]


class Packer(NamedTuple):
    """A provider that packs: its name, and the backend that runs the operator."""

    provider: str
    backend: Backend


def unreadable(
    name: str,
    backend: Backend,
    reference: Backend,
    bindings: Mapping[str, Binding],
    live: Live,
) -> str:
    """Why the reference would have to read what the backend packed; "" where it would not.

    name: of the backend. live: whether the model calls an operator. The host packs for itself and
    needs no such check. Nor does a backend that reads the reference's packed values through
    `operators`.
    """
    for packer, readers in READERS.items():
        inherited = getattr(type(backend), packer) is getattr(type(reference), packer)
        if bindings[packer].provider != NATIVE or inherited:
            continue
        for reader in readers:
            if FALLBACK in bindings[reader].providers and live(reader):
                return (
                    f"backend {name!r} packs weights itself ({packer!r}), so the reference cannot "
                    f"run {reader!r} on them for it: {bindings[reader].reason}. A backend "
                    f"overrides {reader!r} for all these calls, or leaves {packer!r} to the "
                    "reference"
                )
    return ""


def host_packers(bindings: Mapping[str, Binding], live: Live) -> dict[str, bool]:
    """Packers with a reader on the host; True where every reader is on the host.

    Where only some readers are on the host, weights are packed twice.
    """
    found = {}
    for packer, readers in READERS.items():
        providers = {p for r in readers if live(r) for p in bindings[r].providers}
        if HOST in providers:
            found[packer] = providers == {HOST} and bindings[packer].provider != NATIVE
    return found
