"""Backends with one mistake each on the residual streams: the reference, but for one operator.

A fault is what its docstring says; everything else is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Advanced, Entered, Mix, MixSite
from deepinfer.conformance.case import Failure
from tests.conformance.mutants.variant import (
    Variant,
    nan_in_the_row_before,
    with_arguments,
    with_result,
)


class SinkhornFewer(Variant, seen_at="mix advance"):
    """One Sinkhorn iteration fewer."""

    mix = with_arguments(
        "mix", site=lambda site: replace(site, iterations=max(1, site.iterations - 1))
    )


class SinkhornEndsWithRows(Variant, seen_at="mix"):
    """Sinkhorn normalises the rows once more at its end."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        mix = super().mix(streams, site)
        return mix._replace(comb=mix.comb / (mix.comb.sum(2, keepdim=True) + site.eps))


class CombTransposed(Variant, seen_at="mix model.vectors"):
    """Streams are mixed from their destination to their source."""

    mix = with_result("mix", lambda mix: mix._replace(comb=mix.comb.transpose(1, 2)))


class PostNotDoubled(Variant, seen_at="mix enter"):
    """The post mix lacks its factor of two."""

    mix = with_result("mix", lambda mix: mix._replace(post=mix.post / 2))


class PreWithoutEps(Variant, seen_at="mix"):
    """The pre mix lacks its eps."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        mix = super().mix(streams, site)
        return mix._replace(pre=mix.pre - site.eps)


class ScaleOfPre(Variant, seen_at="mix"):
    """The scales of post and comb are loaded and never used: that of pre stands in."""

    mix = with_arguments("mix", site=lambda site: replace(site, scale=site.scale[:1].expand(3)))


class BaseUnused(Variant, seen_at="mix"):
    """The base of a site is loaded and never used."""

    mix = with_arguments("mix", site=lambda site: replace(site, base=torch.zeros_like(site.base)))


class RmsWithUsualEps(Variant, seen_at="mix"):
    """The RMS of the streams has an eps of 1e-6."""

    mix = with_arguments("mix", site=lambda site: replace(site, norm_eps=1e-6))


class MixInBf16(Variant, seen_at="mix"):
    """Mixes are rounded to bf16."""

    mix = with_result("mix", lambda mix: Mix(*(part.bfloat16().to(part.dtype) for part in mix)))


class StreamMajorLost(Variant, seen_at="mix"):
    """The projection reads the streams channel by channel."""

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        _, count, width = streams.shape
        fn = site.fn.view(-1, width, count).transpose(1, 2).flatten(1)
        return super().mix(streams, replace(site, fn=fn))


class LastStreamLost(Variant, seen_at="collapse"):
    """The last stream is not read."""

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        if streams.shape[1] == 1:
            return super().collapse(streams, pre)
        return super().collapse(streams[:, :-1], pre[:, :-1])


class SumInBf16(Variant, seen_at="collapse"):
    """The streams are added up in bf16."""

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        terms = (streams.to(pre.dtype) * pre[..., None]).to(streams.dtype)
        total = terms[:, 0]
        for stream in range(1, terms.shape[1]):
            total = total + terms[:, stream]
        return total


class CombReadBackwards(Variant, seen_at="expand"):
    """New streams are made by the rows of comb, which are for its columns."""

    expand = with_arguments("expand", mix=lambda mix: mix._replace(comb=mix.comb.transpose(1, 2)))


class PostOfFirst(Variant, seen_at="expand"):
    """Every stream gets the sub-layer's output by the first one's weight."""

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        post = mix.post[:, :1].expand_as(mix.post).contiguous()
        return super().expand(out, streams, mix._replace(post=post))


class StreamsInPlace(Variant, seen_at="expand", failure=Failure.WRITE):
    """New streams overwrite the old ones."""

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        return streams.copy_(super().expand(out, streams, mix))


class NanSpreads(Variant, seen_at="collapse", failure=Failure.NAN):
    """A NaN in one row reaches the row before."""

    collapse = with_result("collapse", nan_in_the_row_before)


class PreOfSameSite(Variant, seen_at="enter advance model.bundled"):
    """A sub-layer reads the streams by its own pre mix, not by that of the site before."""

    def enter(self, *arguments: Any) -> Entered:
        streams, _, sub_layer, scheme = arguments
        return super().enter(streams, self.mix(streams, sub_layer.site).pre, sub_layer, scheme)


class MixOfOldStreams(Variant, seen_at="advance"):
    """The next site is mixed before the streams are written."""

    def advance(self, *arguments: Any) -> Advanced:
        _, streams, _, next_sub_layer, _ = arguments
        found = super().advance(*arguments)
        return found._replace(mix=self.mix(streams, next_sub_layer.site))


class StepNotQuantised(Variant, seen_at="enter", failure=Failure.DTYPE):
    """What enters a sub-layer has no quantised half."""

    enter = with_arguments("enter", scheme=lambda scheme: None)
