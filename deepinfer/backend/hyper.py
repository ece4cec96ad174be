"""Hyper-connection family: the residual streams and their single-pass mixing.

S streams of width H per row. Source: model specification, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from deepinfer.backend.dense import Dense
from deepinfer.backend.facts import streams_of
from deepinfer.backend.operators import primitive, step
from deepinfer.backend.values import Activation, Mix
from deepinfer.formats import Scheme


@dataclass(frozen=True)
class MixSite:
    """Weights of one mixing site, float32: fn [2S + S*S, S*H], base [2S + S*S], scale [3].

    iterations: Sinkhorn passes. eps: of the pre mix and of Sinkhorn. norm_eps: of the RMS.
    """

    fn: Tensor
    base: Tensor
    scale: Tensor
    iterations: int
    eps: float
    norm_eps: float


@dataclass(frozen=True)
class SubLayer:
    """What stands in front of a sub-layer: its mixing site and its norm."""

    site: MixSite
    norm: Tensor
    norm_eps: float


class Entered(NamedTuple):
    """The mix predicted at a site, and the sub-layer's normed input [T, H]."""

    mix: Mix
    activation: Activation


class Advanced(NamedTuple):
    """Streams after one sub-layer's update, and what the next sub-layer starts from."""

    streams: Tensor
    mix: Mix
    activation: Activation


class HyperConnections(Dense):
    """Operators on the residual streams. Mixes are fp32 always (float64 in float64)."""

    @primitive(
        rows="streams",
        facts=lambda call: {**streams_of(call.streams), "iterations": call.site.iterations},
    )
    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        """Predict the site's mix from streams [T, S, H] (model specification, 3.3).

        The projection comes first, then the RMS; Sinkhorn ends with a column normalisation.
        """
        raise NotImplementedError

    @primitive(rows="streams", facts=lambda call: streams_of(call.streams))
    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        """Sum of pre[s] * stream s, accumulated fp32 and rounded once: -> [T, H]."""
        raise NotImplementedError

    @primitive(rows="streams", facts=lambda call: streams_of(call.streams))
    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        """Write a sub-layer's output [T, H] back: -> new streams [T, S, H], one rounding.

        stream n = post[n] * out + sum over m of comb[m, n] * stream m, in fp32.
        """
        raise NotImplementedError

    @step(
        rows="streams",
        facts=lambda call: {**streams_of(call.streams), "scheme": call.scheme},
    )
    def enter(
        self, streams: Tensor, pre: Tensor, sub_layer: SubLayer, scheme: Scheme | None
    ) -> Entered:
        """Mix at this site, read the streams by the pre mix of the previous one, norm, quantise."""
        mix = self.mix(streams, sub_layer.site)
        collapsed = self.collapse(streams, pre)
        activation = self.norm_quantise(collapsed, sub_layer.norm, sub_layer.norm_eps, scheme)
        return Entered(mix, activation)

    @step(
        rows="streams",
        facts=lambda call: {**streams_of(call.streams), "scheme": call.scheme},
    )
    def advance(
        self,
        out: Tensor,
        streams: Tensor,
        mix: Mix,
        next_sub_layer: SubLayer,
        scheme: Scheme | None,
    ) -> Advanced:
        """`expand` with this site's mix, then `enter` the next sub-layer."""
        streams = self.expand(out, streams, mix)
        entered = self.enter(streams, mix.pre, next_sub_layer, scheme)
        return Advanced(streams, entered.mix, entered.activation)
