"""Backends with one mistake each: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.backend import (
    Activation,
    Compressed,
    Entered,
    ExpertSource,
    LinearSource,
    Mix,
    MixSite,
    PackedExperts,
    PackedLinear,
    Routed,
    Routing,
    SubLayer,
    WindowSpan,
)
from deepinfer.formats import Scheme, dequantise, fp8_rows
from deepinfer.model import inverse_frequencies
from deepinfer_reference.backend import ReferenceBackend
from deepinfer_reference.packed import ReferenceExperts, ReferenceLinear

# --- attention ---------------------------------------------------------------------------------


class SinkIgnored(ReferenceBackend):
    """The sink is left out of the softmax's denominator."""

    def attend(self, *arguments: Any) -> Tensor:
        *before, sink, scale, batch = arguments
        return super().attend(*before, torch.full_like(sink, float("-inf")), scale, batch)


class _OtherWindow(ReferenceBackend):
    more = 0

    def attend(self, queries: Tensor, window: Any, span: WindowSpan, *rest: Any) -> Tensor:
        first = torch.minimum((span.first - self.more).clamp(min=0), span.last)
        return super().attend(
            queries, window, WindowSpan(first, span.last, span.width + self.more), *rest
        )


class WindowShort(_OtherWindow):
    """The window is one position shorter."""

    more = -1


class WindowLong(_OtherWindow):
    """The window is one position longer."""

    more = 1


class OutputNotRotatedBack(ReferenceBackend):
    """The attention output keeps its rotation."""

    def rope(self, *arguments: Any) -> Tensor:
        x, _, _, inverse, _ = arguments
        return x if inverse else super().rope(*arguments)


class RopeNotInverted(ReferenceBackend):
    """The attention output is rotated once more, forwards."""

    def rope(self, *arguments: Any) -> Tensor:
        x, positions, frequencies, _, numerics = arguments
        return super().rope(x, positions, frequencies, False, numerics)


class HalvesPaired(ReferenceBackend):
    """Channels are rotated in pairs of halves, not in adjacent pairs."""

    def rope(self, *arguments: Any) -> Tensor:
        x, positions, frequencies, inverse, numerics = arguments
        kept = x.shape[-1] - 2 * len(frequencies)
        pairs = torch.stack(x[..., kept:].chunk(2, -1), -1).flatten(-2)
        turned = super().rope(
            torch.cat((x[..., :kept], pairs), -1), positions, frequencies, inverse, numerics
        )[..., kept:]
        return torch.cat((x[..., :kept], turned[..., ::2], turned[..., 1::2]), -1)


class _OtherFrequencies(ReferenceBackend):
    theta = 0.0

    def rope(self, *arguments: Any) -> Tensor:
        x, positions, frequencies, inverse, numerics = arguments
        channels = 2 * len(frequencies)
        if not torch.equal(frequencies, inverse_frequencies(10000.0, channels)):
            frequencies = inverse_frequencies(self.theta, channels)
        return super().rope(x, positions, frequencies, inverse, numerics)


class YarnIgnored(_OtherFrequencies):
    """Compressed layers rotate without YaRN."""

    theta = 160000.0


class PlainTheta(_OtherFrequencies):
    """Compressed layers rotate with the frequencies of window layers."""

    theta = 10000.0


# --- selection ---------------------------------------------------------------------------------


class CandidatesIgnored(ReferenceBackend):
    """Reindex layers choose among all entries."""

    def top(self, *arguments: Any) -> Tensor:
        scores, visible, k, _, size = arguments
        return super().top(scores, visible, k, None, size)


class TopKFewer(ReferenceBackend):
    """One selected entry fewer."""

    def top(self, *arguments: Any) -> Tensor:
        scores, visible, k, candidates, size = arguments
        kept = super().top(scores, visible, k - 1, candidates, size)
        return functional.pad(kept, (0, 1), value=-1)


class InvisibleSelected(ReferenceBackend):
    """Each row sees the entry that its own token has not completed yet."""

    def top(self, *arguments: Any) -> Tensor:
        scores, visible, k, candidates, size = arguments
        last = scores.masked_fill(scores == float("-inf"), 0)
        return super().top(last, visible + 1, k, candidates, size)


class LastBlockNotForced(ReferenceBackend):
    """The block of the last visible entry is a candidate only by its score."""

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        return super().best_blocks(scores, torch.full_like(visible, 1 << 20), size, k)


class BlockFewer(ReferenceBackend):
    """One candidate block fewer."""

    def best_blocks(self, scores: Tensor, visible: Tensor, size: int, k: int) -> Tensor:
        kept = super().best_blocks(scores, visible, size, k - 1)
        return functional.pad(kept, (0, 1), value=-1)


class ReluMissing(ReferenceBackend):
    """Index scores sum dot products of either sign."""

    def index_scores(self, *arguments: Any) -> Tensor:
        queries, weights, scale, keys, visible, width, batch, _ = arguments
        heads = dequantise(*queries.quantised, queries.scheme, torch.float32)
        entries = torch.arange(width).expand(len(heads), -1)
        sequence = batch.sequence[:, None].expand_as(entries)
        own = self.load(keys, sequence, entries, batch, torch.float32)
        dots = torch.einsum("thi,tci->thc", heads, own).to(weights.dtype)
        terms = dots * (weights * scale)[..., None]
        scores = terms.float().sum(1).to(weights.dtype)
        return scores.masked_fill(entries >= visible[:, None], float("-inf"))


# --- cache -------------------------------------------------------------------------------------


class GatesIgnored(ReferenceBackend):
    """The compressor takes the mean of its members in place of their softmax."""

    def compress(self, *arguments: Any) -> Compressed:
        values, gates, *rest = arguments
        return super().compress(values, None if gates is None else torch.zeros_like(gates), *rest)


class PendingForgotten(ReferenceBackend):
    """The compressor forgets the members of earlier steps."""

    def compress(self, *arguments: Any) -> Compressed:
        values, gates, state, *rest = arguments
        if state is not None:
            state.members.zero_()
        return super().compress(values, gates, state, *rest)


class StoredTowardsZero(ReferenceBackend):
    """Cache entries are rounded towards zero, or nearly so."""

    def store(self, values: Tensor, *rest: Any) -> None:
        super().store(values * 0.96, *rest)


# --- experts -----------------------------------------------------------------------------------


class BiasInWeights(ReferenceBackend):
    """Routing weights hold the bias that only the choice should see."""

    def route(self, *arguments: Any) -> Routing:
        logits, bias, image_bias, image_mask, _, scale = arguments
        ids = super().route(*arguments).ids
        scores = torch.sqrt(functional.softplus(logits))
        scores = scores + torch.where(image_mask[:, None], image_bias, bias)
        weights = scores.gather(1, ids.long())
        return Routing(ids, weights / weights.sum(-1, keepdim=True) * scale)


class BiasIgnored(ReferenceBackend):
    """Experts are chosen by score alone."""

    def route(self, *arguments: Any) -> Routing:
        logits, bias, image_bias, *rest = arguments
        return super().route(logits, bias * 0, image_bias * 0, *rest)


class ImageBiasForText(ReferenceBackend):
    """Experts of text tokens are chosen with the bias of image tokens."""

    def route(self, *arguments: Any) -> Routing:
        logits, _, image_bias, *rest = arguments
        return super().route(logits, image_bias, image_bias, *rest)


class RouteScaleMissing(ReferenceBackend):
    """Routing weights sum to one."""

    def route(self, *arguments: Any) -> Routing:
        return super().route(*arguments[:-1], 1.0)


class WeightAfterProjection(ReferenceBackend):
    """Routing weights are applied to what the experts return."""

    def expert_mlp(self, *arguments: Any) -> Routed:
        routed, *rest = arguments
        weights = routed.routing.weights
        plain = Routing(routed.routing.ids, torch.ones_like(weights))
        done = super().expert_mlp(Routed(routed.activation, plain, routed.group), *rest)
        assert done.outputs is not None
        outputs = (done.outputs.float() * weights[..., None]).to(done.outputs.dtype)
        return Routed(routed.activation, routed.routing, routed.group, outputs)


class ClampDropped(ReferenceBackend):
    """SwiGLU does not clamp."""

    def swiglu(self, *arguments: Any) -> Activation:
        gate, up, _, *rest = arguments
        return super().swiglu(gate, up, 0.0, *rest)


class GateClampedBelow(ReferenceBackend):
    """SwiGLU clamps the gate from below too."""

    def swiglu(self, *arguments: Any) -> Activation:
        gate, up, limit, *rest = arguments
        return super().swiglu(gate.clamp(min=-limit), up, limit, *rest)


# --- weights -----------------------------------------------------------------------------------


class ScaleOfNextBlock(ReferenceBackend):
    """FP8 weights take the scale of the block of columns before."""

    def pack_linear(self, source: LinearSource) -> PackedLinear:
        packed = super().pack_linear(source)
        assert isinstance(packed, ReferenceLinear)
        if packed.kind == "fp8":
            assert packed.scale is not None
            packed.scale = packed.scale.roll(1, 1)
        return packed


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


class NibblesSwapped(ReferenceBackend):
    """FP4 weights have their even columns in the high nibble."""

    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        packed = super().pack_experts(sources)
        assert isinstance(packed, ReferenceExperts)
        for expert in packed.experts:
            for matrix in (expert.w1, expert.w2, expert.w3):
                matrix.weight = (matrix.weight & 15) << 4 | matrix.weight >> 4
        return packed


# --- streams -----------------------------------------------------------------------------------


class EngramGateSign(ReferenceBackend):
    """The Engram gate opens where the match is negative."""

    def inject(self, *arguments: Any) -> Tensor:
        streams, memory, q_weight, *rest = arguments
        return super().inject(streams, memory, -q_weight, *rest)


class EngramSkipped(ReferenceBackend):
    """Engram adds nothing."""

    def inject(self, streams: Tensor, *rest: Any) -> Tensor:
        return streams


class PreOfSameSite(ReferenceBackend):
    """A sub-layer reads the streams by its own pre mix, not by that of the site before."""

    def enter(
        self, streams: Tensor, pre: Tensor, sub_layer: SubLayer, scheme: Scheme | None
    ) -> Entered:
        own = self.mix(streams, sub_layer.site).pre
        return super().enter(streams, own, sub_layer, scheme)


class SinkhornFewer(ReferenceBackend):
    """One Sinkhorn iteration fewer."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        return super().mix(streams, dataclasses.replace(site, iterations=site.iterations - 1))


class CombTransposed(ReferenceBackend):
    """Streams are mixed from their destination to their source."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        mix = super().mix(streams, site)
        return mix._replace(comb=mix.comb.transpose(1, 2))


class PostNotDoubled(ReferenceBackend):
    """The post mix lacks its factor of two."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        mix = super().mix(streams, site)
        return mix._replace(post=mix.post / 2)
