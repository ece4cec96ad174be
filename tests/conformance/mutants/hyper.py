"""Backends with one mistake each on the residual streams: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from deepinfer.backend import Advanced, Entered, Mix, MixSite, SubLayer
from deepinfer.formats import Scheme
from deepinfer_reference.backend import ReferenceBackend


class SinkhornFewer(ReferenceBackend):
    """One Sinkhorn iteration fewer."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        fewer = dataclasses.replace(site, iterations=max(1, site.iterations - 1))
        return super().mix(streams, fewer)


class SinkhornEndsWithRows(ReferenceBackend):
    """Sinkhorn normalises the rows once more at its end."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        mix = super().mix(streams, site)
        return mix._replace(comb=mix.comb / (mix.comb.sum(2, keepdim=True) + site.eps))


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


class PreWithoutEps(ReferenceBackend):
    """The pre mix lacks its eps."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        mix = super().mix(streams, site)
        return mix._replace(pre=mix.pre - site.eps)


class ScaleOfPre(ReferenceBackend):
    """The scales of post and comb are loaded and never used: that of pre stands in."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        return super().mix(streams, dataclasses.replace(site, scale=site.scale[:1].expand(3)))


class BaseUnused(ReferenceBackend):
    """The base of a site is loaded and never used."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        return super().mix(streams, dataclasses.replace(site, base=torch.zeros_like(site.base)))


class RmsWithUsualEps(ReferenceBackend):
    """The RMS of the streams has an eps of 1e-6."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        return super().mix(streams, dataclasses.replace(site, norm_eps=1e-6))


class MixInBf16(ReferenceBackend):
    """Mixes are rounded to bf16."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        return Mix(*(part.bfloat16().to(part.dtype) for part in super().mix(streams, site)))


class StreamMajorLost(ReferenceBackend):
    """The projection reads the streams channel by channel."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        _, count, width = streams.shape
        fn = site.fn.view(-1, width, count).transpose(1, 2).flatten(1)
        return super().mix(streams, dataclasses.replace(site, fn=fn))


class LastStreamLost(ReferenceBackend):
    """The last stream is not read."""

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        if streams.shape[1] == 1:
            return super().collapse(streams, pre)
        return super().collapse(streams[:, :-1], pre[:, :-1])


class SumInBf16(ReferenceBackend):
    """The streams are added up in bf16."""

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        terms = (streams.to(pre.dtype) * pre[..., None]).to(streams.dtype)
        total = terms[:, 0]
        for stream in range(1, terms.shape[1]):
            total = total + terms[:, stream]
        return total


class CombReadBackwards(ReferenceBackend):
    """New streams are made by the rows of comb, which are for its columns."""

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        return super().expand(out, streams, mix._replace(comb=mix.comb.transpose(1, 2)))


class PostOfFirst(ReferenceBackend):
    """Every stream gets the sub-layer's output by the first one's weight."""

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        post = mix.post[:, :1].expand_as(mix.post).contiguous()
        return super().expand(out, streams, mix._replace(post=post))


class StreamsInPlace(ReferenceBackend):
    """New streams overwrite the old ones."""

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        return streams.copy_(super().expand(out, streams, mix))


class NanSpreads(ReferenceBackend):
    """A NaN in one row reaches the row before."""

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        out = super().collapse(streams, pre)
        return torch.where(out.isnan().any(1).roll(-1)[:, None], float("nan"), out)


class PreOfSameSite(ReferenceBackend):
    """A sub-layer reads the streams by its own pre mix, not by that of the site before."""

    def enter(
        self, streams: Tensor, pre: Tensor, sub_layer: SubLayer, scheme: Scheme | None
    ) -> Entered:
        own = self.mix(streams, sub_layer.site).pre
        return super().enter(streams, own, sub_layer, scheme)


class MixOfOldStreams(ReferenceBackend):
    """The next site is mixed before the streams are written."""

    def advance(
        self,
        out: Tensor,
        streams: Tensor,
        mix: Mix,
        next_sub_layer: SubLayer,
        scheme: Scheme | None,
    ) -> Advanced:
        found = super().advance(out, streams, mix, next_sub_layer, scheme)
        return found._replace(mix=self.mix(streams, next_sub_layer.site))


class StepNotQuantised(ReferenceBackend):
    """What enters a sub-layer has no quantised half."""

    def enter(
        self, streams: Tensor, pre: Tensor, sub_layer: SubLayer, scheme: Scheme | None
    ) -> Entered:
        return super().enter(streams, pre, sub_layer, None)
