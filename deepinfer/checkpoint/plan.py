"""How much memory the weights of a checkpoint take, said before any byte of them is read.

Matrices, tables and their scales stay in the mapped files (the page cache, which the system may
take back); small values (norms, biases, sinks, hyper-connection weights) are copied, as is what
the file stores unaligned. A backend that packs weights otherwise passes its own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from deepinfer.checkpoint.header import StoredTensor
from deepinfer.checkpoint.kinds import Component, ExpectedTensor, Kind
from deepinfer.checkpoint.verify import Located
from deepinfer.formats.dtypes import READ_DTYPES

BOOKKEEPING_BYTES = 700  # host memory per stored tensor for names, shapes and offsets

Copied = Callable[[ExpectedTensor], bool]


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that loading takes.

    mapped_bytes stay in the files; copied_bytes are private copies; temporary_bytes are needed only
    at the peak of loading; bookkeeping_bytes are the table of tensors on the host. Anonymous memory
    is what the system cannot drop under pressure.
    """

    components: tuple[str, ...]
    mapped_bytes: int
    copied_bytes: int
    temporary_bytes: int
    bookkeeping_bytes: int

    @property
    def anonymous_bytes(self) -> int:
        """Upper bound of the growth of anonymous memory while loading."""
        return self.copied_bytes + self.temporary_bytes + self.bookkeeping_bytes

    def __str__(self) -> str:
        return (
            f"weights ({', '.join(self.components)}): {human_bytes(self.mapped_bytes)} stay mapped "
            f"in the files; anonymous memory {human_bytes(self.anonymous_bytes)} "
            f"({human_bytes(self.copied_bytes)} copied, {human_bytes(self.temporary_bytes)} "
            f"temporary, {human_bytes(self.bookkeeping_bytes)} tables)"
        )


def human_bytes(count: int) -> str:
    """A size in decimal units with three digits: 890 B, 114 kB, 510 GB."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:,.{digits}f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def copied_by_default(tensor: ExpectedTensor) -> bool:
    """Everything but matrices and tables: at most a few megabytes each, read at every step."""
    return tensor.kind is Kind.FP32 or len(tensor.shape) < 2


def unaligned(stored: StoredTensor) -> bool:
    """Whether the stored bytes cannot be viewed in place."""
    return stored.offset % READ_DTYPES[stored.dtype].itemsize != 0


def plan_memory(
    expected: Iterable[ExpectedTensor],
    found: Mapping[str, Located],
    components: Iterable[Component],
    *,
    copied: Copied = copied_by_default,
) -> MemoryPlan:
    """The plan for the components in use; `found` must have passed the check.

    copied: which values are copied rather than mapped; unaligned ones always are.
    """
    used = tuple(components)
    mapped = private = largest = 0
    for tensor in expected:
        if tensor.component not in used:
            continue
        stored = found[tensor.name].tensor
        if copied(tensor) or unaligned(stored):
            private += stored.nbytes
            largest = max(largest, stored.nbytes)
        else:
            mapped += stored.nbytes
        if tensor.kind.quantised and (scale := found.get(tensor.scale_name)) is not None:
            mapped += scale.tensor.nbytes
    names = tuple(component.value for component in used)
    return MemoryPlan(names, mapped, private, largest, BOOKKEEPING_BYTES * len(found))
