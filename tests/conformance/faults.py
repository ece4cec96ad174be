"""Backends with one mistake each that only the golden check tries; it tries many mutants as well.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.backend import LinearSource, PackedLinear, Routing
from deepinfer.formats import fp8_rows
from deepinfer_reference.backend import ReferenceBackend
from deepinfer_reference.packed import ReferenceLinear
from tests.conformance.mutants import dense
from tests.conformance.mutants.variant import with_arguments


class RopeNotInverted(ReferenceBackend):
    """The attention output is rotated once more, forwards."""

    rope = with_arguments("rope", inverse=lambda inverse: False)


class PlainTheta(dense.YarnIgnored):
    """Compressed layers rotate with the frequencies of window layers."""

    theta = 10000.0


class InvisibleSelected(ReferenceBackend):
    """Each row sees the entry that its own token has not completed yet."""

    top = with_arguments(
        "top",
        scores=lambda scores: scores.masked_fill(scores == float("-inf"), 0),
        visible=lambda visible: visible + 1,
    )


class BlockFewer(ReferenceBackend):
    """One candidate block fewer."""

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        kept = super().best_blocks(scores, visible, size, k - 1)
        return functional.pad(kept, (0, 1), value=-1)


class StoredTowardsZero(ReferenceBackend):
    """Cache entries are rounded towards zero, or nearly so."""

    store = with_arguments("store", values=lambda values: values * 0.96)


class BiasIgnored(ReferenceBackend):
    """Experts are chosen by score alone."""

    route = with_arguments("route", bias=torch.zeros_like, image_bias=torch.zeros_like)


class ImageBiasForText(ReferenceBackend):
    """Experts of text tokens are chosen with the bias of image tokens."""

    def route(self, logits: Tensor, bias: Tensor, image_bias: Tensor, *rest: Any) -> Routing:
        return super().route(logits, image_bias, image_bias, *rest)


class _LateRows(ReferenceLinear):
    def values(self, start: int, stop: int, dtype: torch.dtype, round_to_bf16: bool) -> Tensor:
        assert self.scale is not None
        scale = self.scale[(torch.arange(start, stop) - 1).clamp(min=0) // 32]
        return fp8_rows(self.weight[start:stop], scale, dtype)


class ScaleRowLate(ReferenceBackend):
    """FP8 weights go on to the next row of scales one row late."""

    def pack_linear(self, source: LinearSource) -> PackedLinear:
        if source.kind != "fp8" or source.shape[1] % 32:
            return super().pack_linear(source)
        return _LateRows.pack(source, self.device)


class EngramGateSign(ReferenceBackend):
    """The Engram gate opens where the match is negative."""

    inject = with_arguments("inject", q_weight=torch.neg)


class EngramSkipped(ReferenceBackend):
    """Engram adds nothing."""

    def inject(self, streams: Tensor, *rest: Any) -> Tensor:
        return streams
