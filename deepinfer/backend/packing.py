"""Who packs weights: packed values are opaque, so whoever reads one must have packed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from deepinfer.backend.base import Backend
from deepinfer.backend.bindings import FALLBACK, HOST, NATIVE, Binding

READERS = {
    "pack_linear": ("linear", "grouped_linear"),
    "pack_table": ("embed", "gather"),
    "pack_experts": ("expert_mlp",),
}
"""Operators that make an opaque value, and the primitives that read it."""

PACKERS = ("pack_vector", *READERS)
"""Operators that take weights."""

Live = Callable[[str], bool]


class Packer(NamedTuple):
    """One who packs: its provider's name, and the backend that runs the operator."""

    provider: str
    backend: Backend


def unreadable(
    name: str,
    backend: Backend,
    reference: Backend,
    bindings: Mapping[str, Binding],
    live: Live,
) -> str:
    """What is wrong with a table in which the reference would read what the backend packed.

    name: of the backend. live: does the model call this operator? The host is no such case, since
    it packs for itself; nor is a backend that reads the reference's through `operators`. "" where
    nothing is wrong.
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
    """Packers whose readers include the host: True where the host reads all that is packed.

    Where it reads a part only, weights are packed twice.
    """
    found = {}
    for packer, readers in READERS.items():
        providers = {p for r in readers if live(r) for p in bindings[r].providers}
        if HOST in providers:
            found[packer] = providers == {HOST} and bindings[packer].provider != NATIVE
    return found
