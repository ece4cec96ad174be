"""Backends with one mistake each in the dense family: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    AttentionWeights,
    Numerics,
    PackedLinear,
    PackedTable,
    Projection,
    accumulation_dtype,
)
from deepinfer.conformance.case import Failure
from deepinfer.formats import Quantised, Scheme, dequantise, quantise
from tests.conformance.mutants.variant import (
    Variant,
    nan_in_the_row_before,
    with_arguments,
    with_result,
)

# --- matmuls and tables ------------------------------------------------------------------------


class MinusOneWraps(Variant, seen_at="embed", failure=Failure.RAISES):
    """Token -1 reads the last row of the embedding."""

    def embed(self, table: PackedTable, ids: Tensor, dtype: torch.dtype) -> Tensor:
        wrapped = torch.where(ids == -1, table.shape[0] - 1, ids)
        return super().embed(table, wrapped, dtype)


class ValuesConsumed(Variant, seen_at="linear"):
    """FP8 matmuls read the values where there is a quantised half."""

    linear = with_arguments("linear", a=lambda a: Activation(a.values))


class QuantisedHalfConsumed(Variant, seen_at="linear"):
    """Matmuls with unquantised weights read the quantised half where there is one."""

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        if a.quantised is None or w.kind in ("fp8", "fp4"):
            return super().linear(a, w, out_dtype)
        read = dequantised(a)
        return super().linear(Activation(read), w, out_dtype)


class LastColumnLost(Variant, seen_at="linear"):
    """The sums leave out the last input of long rows."""

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        if w.shape[1] < 1024 or w.kind != "bf16":
            return super().linear(a, w, out_dtype)
        values = a.values.clone()
        values[:, -1] = 0
        return super().linear(Activation(values), w, out_dtype)


class GroupOfNeighbour(Variant, seen_at="grouped_linear"):
    """Each group of the output projection takes the weights of the next one."""

    def grouped_linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        halves = a.quantised
        turned = Activation(
            a.values.roll(1, 1),
            None if halves is None else Quantised(*(half.roll(1, 1) for half in halves)),
            a.scheme,
        )
        return super().grouped_linear(turned, w, out_dtype).roll(-1, 1)


class SumOfBatch(Variant, seen_at="linear", failure=Failure.BATCH):
    """The last bits of a sum depend on the number of rows."""

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        out = super().linear(a, w, out_dtype)
        return out if out.shape[0] == 1 else torch.nextafter(out, out + 1)


class SumOfRun(Variant, seen_at="linear", failure=Failure.REPEAT):
    """The last bits of a sum differ from run to run."""

    runs = 0

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        out = super().linear(a, w, out_dtype)
        self.runs += 1
        return out if self.runs % 2 else torch.nextafter(out, out + 1)


# --- norms and quantisers ----------------------------------------------------------------------


class NormWeightUnused(Variant, seen_at="rms_norm"):
    """The norm's weight is loaded and never used."""

    rms_norm = with_arguments("rms_norm", weight=torch.ones_like)


class UsualEps(Variant, seen_at="rms_norm"):
    """The norm's eps is the usual 1e-6 at least."""

    rms_norm = with_arguments("rms_norm", eps=lambda eps: max(eps, 1e-6))


class NanSpreads(Variant, seen_at="rms_norm norm_quantise", failure=Failure.NAN):
    """A NaN in one row of the norm reaches the row before."""

    rms_norm = with_result("rms_norm", nan_in_the_row_before)


class NormInPlace(Variant, seen_at="rms_norm", failure=Failure.WRITE):
    """The norm overwrites its input."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x.copy_(super().rms_norm(x, weight, eps))


class WrittenPastTheEnd(Variant, seen_at="rms_norm", failure=Failure.WRITE):
    """The norm writes one element behind its input."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = super().rms_norm(x, weight, eps)
        if x.numel():
            x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(0)
        return out


class FloorMissing(Variant, seen_at="quantise"):
    """The FP8 scale of a small group is not held up by the floor of 1e-4."""

    def quantise(self, x: Tensor, scheme: Scheme | None) -> Activation:
        if scheme is not Scheme.FP8_BLOCK32:
            return super().quantise(x, scheme)
        small = x.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) < 2.0**-14
        up = torch.where(small, 2.0**20, 1.0).expand(*small.shape[:-1], 32).flatten(-2)
        codes, scales = quantise((x * up).to(x.dtype), scheme)
        lowered = scales.int() - 20 * small.squeeze(-1).int()
        return Activation(x, Quantised(codes, lowered.clamp(min=0).to(torch.uint8)), scheme)


class ScaleRoundedDown(Variant, seen_at="quantise"):
    """Power-of-two scales are the next lower ones; the largest values saturate."""

    def quantise(self, x: Tensor, scheme: Scheme | None) -> Activation:
        if scheme is not Scheme.MXFP4:
            return super().quantise(x, scheme)
        codes, scales = quantise((x * 0.5).to(x.dtype), scheme)
        return Activation(x, Quantised(codes, scales), scheme)


class TiesAway(Variant, seen_at="quantise"):
    """NVFP4 elements halfway between two codes go to the larger one."""

    def quantise(self, x: Tensor, scheme: Scheme | None) -> Activation:
        if scheme is not Scheme.NVFP4:
            return super().quantise(x, scheme)
        own, more = quantise(x, scheme), quantise(x.double() * (1 + 2.0**-20), scheme)
        return Activation(x, Quantised(more.codes, own.scales), scheme)


class QuantisedBeforeRounding(Variant, seen_at="norm_quantise"):
    """The normed row is quantised before it is rounded to bf16."""

    def norm_quantise(
        self, x: Tensor, weight: Tensor, eps: float, scheme: Scheme | None
    ) -> Activation:
        rounded = self.rms_norm(x, weight, eps)
        if scheme is None:
            return Activation(rounded)
        exact = self.rms_norm(x.to(accumulation_dtype(x.dtype)), weight, eps)
        return Activation(rounded, quantise(exact, scheme), scheme)


# --- rotation and steps ------------------------------------------------------------------------


class HalvesPaired(Variant, seen_at="rope model.vectors"):
    """Channels are rotated in pairs of halves, not in adjacent pairs."""

    def rope(self, x: Tensor, positions: Tensor, frequencies: Tensor, *rest: Any) -> Tensor:
        kept = x.shape[-1] - 2 * len(frequencies)
        pairs = torch.stack(x[..., kept:].chunk(2, -1), -1).flatten(-2)
        joined = torch.cat((x[..., :kept], pairs), -1)
        turned = super().rope(joined, positions, frequencies, *rest)[..., kept:]
        return torch.cat((x[..., :kept], turned[..., ::2], turned[..., 1::2]), -1)


class YarnIgnored(Variant, seen_at="rope project model.bundled"):
    """Layers with YaRN are rotated with the plain frequencies of their theta."""

    theta = 160000.0

    def rope(self, x: Tensor, positions: Tensor, frequencies: Tensor, *rest: Any) -> Tensor:
        exponents = torch.arange(len(frequencies)) / max(1, len(frequencies))
        if not torch.allclose(frequencies, 10000.0**-exponents):  # those of layers without YaRN
            frequencies = self.theta**-exponents
        return super().rope(x, positions, frequencies, *rest)


class InverseSkipped(Variant, seen_at="rope"):
    """What is to be rotated back stays as it is."""

    def rope(self, *arguments: Any) -> Tensor:
        x, _, _, inverse, _ = arguments
        return x if inverse else super().rope(*arguments)


class AngleNotRounded(Variant, seen_at="rope"):
    """The angle is a float64 product."""

    def rope(self, *arguments: Any) -> Tensor:
        x, positions, frequencies, inverse, _ = arguments
        angle = positions.double()[:, None] * frequencies.double()
        angle = angle.reshape(len(positions), *[1] * (x.dim() - 2), len(frequencies))
        cos, sin = angle.cos(), angle.sin() * (-1 if inverse else 1)
        kept = x.shape[-1] - 2 * len(frequencies)
        x0, x1 = x[..., kept:].double().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((x0 * cos - x1 * sin, x0 * sin + x1 * cos), -1).flatten(-2)
        return torch.cat((x[..., :kept], turned.to(x.dtype)), -1)


class KvNormUnused(Variant, seen_at="project"):
    """The norm of the window entries is loaded and never used."""

    project = with_arguments(
        "project", weights=lambda own: replace(own, kv_norm=torch.ones_like(own.kv_norm))
    )


class LatentQuantisedInRef(Variant, seen_at="project"):
    """The query latent is quantised in both numeric modes."""

    def project(
        self, a: Activation, weights: AttentionWeights, positions: Tensor, numerics: Numerics
    ) -> Projection:
        found = super().project(a, weights, positions, numerics)
        if numerics is Numerics.INFER:
            return found
        latent = self.quantise(found.latent.values, Scheme.FP8_BLOCK32)
        queries = self.linear(latent, weights.wq_b, a.dtype)
        queries = queries.view(-1, weights.num_heads, weights.head_dim)
        queries = self.rope(queries, positions, weights.frequencies, False, numerics)
        return Projection(queries, found.latent, found.window)


class HiddenNotNormed(Variant, seen_at="logits"):
    """The head reads the collapsed row as it is."""

    def logits(self, x: Tensor, norm: Tensor, eps: float, head: PackedLinear) -> Tensor:
        return self.linear(Activation(x), head, accumulation_dtype(x.dtype))


def dequantised(a: Activation) -> Tensor:
    """What the quantised half holds, in the precision of the values."""
    assert a.quantised is not None
    assert a.scheme is not None
    return dequantise(*a.quantised, a.scheme, a.dtype)
