"""Memory that a case needs. A case that does not fit into this machine is skipped with a reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from deepinfer.backend import CallSpec

BYTES_PER_ELEMENT = 24
"""Memory of one matrix element while a case runs: as drawn in fp32, as stored, as packed, as the
reference reads it in fp32, and as the wide reference reads it in float64.
"""

MATRICES: Mapping[str, tuple[str, ...]] = {
    "linear": ("inputs", "outputs"),
    "grouped_linear": ("groups", "inputs", "outputs"),
    "embed": ("vocabulary", "width"),
    "logits": ("vocabulary", "hidden"),
    "gather": ("table_rows", "width"),
    "engram": ("columns", "table_width", "streams", "width"),
    "project": ("rank", "heads", "head_dim"),
    "attend_output": ("hidden", "groups", "rank"),
    "shared_mlp": ("hidden", "intermediate"),
    "expert_mlp": ("experts", "hidden", "intermediate"),
    "mixture": ("experts", "hidden", "intermediate"),
}
"""Facts of a call whose product is the number of elements of one of its matrices."""
COPIES = {"expert_mlp": 3, "mixture": 3, "shared_mlp": 3, "attend_output": 2}


class MissingHardware(Exception):
    """This machine cannot run the case; the message says what is missing."""


def needed_bytes(calls: Iterable[CallSpec]) -> int:
    """Memory that the matrices of a case take while it runs. calls: the case's own call first."""
    call = next(iter(calls), None)
    if call is None or call.operator not in MATRICES:
        return 0
    sizes = [call.fact(name) for name in MATRICES[call.operator]]
    elements = math.prod(size for size in sizes if isinstance(size, int))
    return elements * COPIES.get(call.operator, 1) * BYTES_PER_ELEMENT


def available_bytes() -> int | None:
    """Memory of the host that is free without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(sizes[0]) * 1024 if sizes else None


def require_memory(calls: Iterable[CallSpec]) -> None:
    """Raise MissingHardware where the matrices of a case do not fit into the host's memory."""
    needed, available = needed_bytes(calls), available_bytes()
    if available is not None and needed > available:
        raise MissingHardware(
            f"host memory: this case takes about {needed / 2**30:.0f} GiB, "
            f"{available / 2**30:.0f} GiB can be had"
        )
