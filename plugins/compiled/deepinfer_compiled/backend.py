"""Operators of the backend. What is not overridden here is composed or run by the reference."""

from __future__ import annotations

from torch import Tensor

from deepinfer.backend import Backend, CallSpec, Mix, Support, accumulation_dtype
from deepinfer_compiled import kernels

OPERATORS = frozenset({"rms_norm", "collapse", "expand"})
PRECISIONS = ("bf16", "fp32", "fp64")


class CompiledBackend(Backend):
    """Norm and residual streams, which are bound by memory: fused, each tensor is read once.

    nondeterministic stays empty: the same call gives the same bits again. So does batch_invariant:
    the compiler chooses the order of sums, and nothing says that it is the same one for every
    number of rows.
    """

    def supports(self, call: CallSpec) -> Support:
        """Every precision of the contract; one that is added later has been tried by nobody."""
        if call.operator in OPERATORS and call.fact("dtype") not in PRECISIONS:
            return Support.no(f"dtype={call.fact('dtype')}: tried with {', '.join(PRECISIONS)}")
        return Support.yes()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Accumulated in fp32 (float64 in float64), rounded once at the end."""
        wide = accumulation_dtype(x.dtype)
        return kernels.rms_norm((x,), weight.to(wide), eps, wide)

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        """The weighted sum of the streams, in one pass over them."""
        return kernels.collapse((streams, pre), accumulation_dtype(streams.dtype))

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        """Mixed streams and the sub-layer's output, in one pass over them."""
        rows = out, streams, mix.post, mix.comb
        return kernels.expand(rows, accumulation_dtype(streams.dtype))
