"""No fault: a backend whose sums have other last bits than the reference's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, Mix, MixSite, PackedLinear
from deepinfer_reference.backend import ReferenceBackend


class OtherSums(ReferenceBackend):
    """Sums and functions of float32 are a few parts in 2^24 off, as another order makes them."""

    def linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        if w.kind == "fp32" and out_dtype == torch.bfloat16:  # a weight that is rounded first
            return super().linear(a, w, out_dtype)
        return self._off(a.values, super().linear(a, w, self._wide(a.values)), out_dtype)

    def grouped_linear(self, a: Activation, w: PackedLinear, out_dtype: torch.dtype) -> Tensor:
        if w.kind == "fp32" and out_dtype == torch.bfloat16:
            return super().grouped_linear(a, w, out_dtype)
        return self._off(a.values, super().grouped_linear(a, w, self._wide(a.values)), out_dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._off(x, super().rms_norm(x.to(self._wide(x)), weight, eps))

    def rope(self, x: Tensor, positions: Tensor, frequencies: Tensor, *rest: Any) -> Tensor:
        turned = super().rope(x.to(self._wide(x)), positions, frequencies, *rest)
        kept = x.shape[-1] - 2 * len(frequencies)
        return torch.cat((x[..., :kept], self._off(x, turned[..., kept:])), -1)

    def mix(self, streams: Tensor, site: MixSite) -> Mix:
        found = super().mix(streams, site)
        return Mix(*(self._off(streams, part, part.dtype) for part in found))

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        return self._off(streams, super().collapse(streams.to(self._wide(streams)), pre))

    def expand(self, out: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        wide = self._wide(streams)
        return self._off(streams, super().expand(out.to(wide), streams.to(wide), mix))

    def inject(self, streams: Tensor, memory: Tensor, *rest: Any) -> Tensor:
        wide, blocked = self._wide(streams), rest[-1]
        found = self._off(streams, super().inject(streams.to(wide), memory.to(wide), *rest))
        return torch.where(blocked[:, None, None], streams, found)

    @staticmethod
    def _wide(x: Tensor) -> torch.dtype:
        return torch.float64 if x.dtype == torch.float64 else torch.float32

    @staticmethod
    def _off(x: Tensor, out: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """`out` times 1 +- 3 * 2^-24 (2^-53 in float64), element by element, rounded."""
        unit = 2.0**-52 if x.dtype == torch.float64 else 2.0**-23
        signs = torch.arange(out[:1].numel()).view(out[:1].shape) % 3 - 1
        return (out.double() * (1 + 1.5 * unit * signs)).to(dtype or x.dtype)
