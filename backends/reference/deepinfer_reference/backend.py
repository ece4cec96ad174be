"""`ReferenceBackend`: every primitive of the contract in plain PyTorch, on any torch device.

It is the definition that other backends are compared with. It overrides no step: a step has one
definition, its default body. It needs these torch operators and no others: elementwise arithmetic,
comparison and `where`, `clamp`, `maximum`, `masked_fill`, `isnan`, `copysign`, `exp`, `log1p`,
`sqrt`, `cos`, `sin`, `frexp`; bit operations, division and remainder of integers; conversions of
dtype; `bmm`, `sum`, `amax`, `cumsum`, stable `sort`; `gather`, `scatter`, `index_select`,
`index_copy_`, `scatter_add_` of integers, indexing by integer tensors; `arange`, `full`, `cat`,
`stack`, `pad` and views. No shape depends on data and nothing waits for the device.
"""

from __future__ import annotations

from deepinfer.backend import (
    OPERATORS,
    Backend,
    CallSpec,
    Fact,
    LinearSource,
    Packing,
    Support,
    Weights,
    stored_bytes,
)
from deepinfer.formats import INDEX, INDEX_BF16, MAIN, MAIN_BF16, WINDOW, Scheme
from deepinfer_reference.attention import ReferenceAttention
from deepinfer_reference.cache import ReferenceCache
from deepinfer_reference.dense import ReferenceDense
from deepinfer_reference.engram import ReferenceEngram
from deepinfer_reference.experts import ReferenceExpertOperators
from deepinfer_reference.hyper import ReferenceHyperConnections
from deepinfer_reference.sampling import ReferenceSampling


class ReferenceBackend(
    ReferenceDense,
    ReferenceHyperConnections,
    ReferenceEngram,
    ReferenceCache,
    ReferenceAttention,
    ReferenceExpertOperators,
    ReferenceSampling,
    Backend,
):
    """The reference on one torch device."""

    def supports(self, call: CallSpec) -> Support:
        """Yes to all that the contract describes, but for what `_refusal` names."""
        if call.operator not in self.native_operators():
            return Support.no("the reference implements primitives only, and not this one yet")
        reason = _refusal(dict(call.facts))
        return Support.yes() if reason is None else Support.no(reason)

    def packing(self, operator: str, weights: Weights) -> Packing:
        """On the CPU matrices stay in the files; elsewhere the stored bytes are copied.

        Experts of another device are copied one by one and then stacked, which takes them twice.
        """
        size = stored_bytes(weights)
        if operator == "pack_vector":
            return Packing(resident=size)
        if self.device.type == "cpu":
            kept = isinstance(weights, LinearSource) and weights.resident
            return Packing(resident=size) if kept else Packing(mapped=size)
        return Packing(resident=size, temporary=size if operator == "pack_experts" else 0)


def _refusal(facts: dict[str, Fact]) -> str | None:
    """Why a call with these facts cannot run; None when it can."""
    group = facts.get("group", 1)
    if group != 1:
        return f"group={group}: expert parallelism is not built yet; run one process"
    scheme = facts.get("scheme")
    if scheme is not None and scheme not in list(Scheme):
        allowed = ", ".join(Scheme)
        return f"scheme={scheme}: the block schemes are {allowed}"
    form = facts.get("format")
    if form is not None and form not in _FORMATS:
        return f"format={form}: the entry formats are {', '.join(_FORMATS)}"
    scheme = scheme if form is None else _FORMATS[str(form)].scheme
    if scheme is None:
        return None
    size = Scheme(str(scheme)).group_size
    for name in ("width", "inputs"):
        width = facts.get(name)
        if isinstance(width, int) and width % size:
            return f"{name}={width}: {Scheme(str(scheme)).value} needs a multiple of {size}"
    return None


_FORMATS = {entry.name: entry for entry in (WINDOW, MAIN, INDEX, MAIN_BF16, INDEX_BF16)}
_IMPLEMENTED = frozenset(OPERATORS) & ReferenceBackend.native_operators()
ReferenceBackend.batch_invariant = _IMPLEMENTED
