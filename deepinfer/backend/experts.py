"""Experts family: routing, dispatch, grouped MLP, combination, and the shared expert.

E experts, k per token, I intermediate width. Source: model specification, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.backend.dense import Dense
from deepinfer.backend.facts import hidden_of, stored_kind
from deepinfer.backend.operators import primitive, step
from deepinfer.backend.values import (
    Activation,
    ExpertSource,
    Group,
    Numerics,
    PackedExperts,
    PackedLinear,
    Routed,
    Routing,
    accumulation_dtype,
)


@dataclass(frozen=True)
class RouterWeights:
    """gate [E, H] packed; bias and image_bias [E] float32, used for the choice only."""

    gate: PackedLinear
    bias: Tensor
    image_bias: Tensor
    top_k: int
    scale: float


@dataclass(frozen=True)
class MlpWeights:
    """Packed matrices of the shared expert: w1 gate [I, H], w2 down [H, I], w3 up [I, H]."""

    w1: PackedLinear
    w2: PackedLinear
    w3: PackedLinear


def _packed(experts: PackedExperts) -> dict[str, object]:
    """Facts of packed experts."""
    return {
        "experts": experts.num_slots,
        "hidden": experts.hidden,
        "intermediate": experts.intermediate,
        "weight": stored_kind(experts),
    }


class Experts(Dense):
    """Operators of the mixture of experts."""

    @primitive()
    def pack_experts(self, sources: Sequence[ExpertSource]) -> PackedExperts:
        """Take the experts of one layer once, slot i from source i."""
        raise NotImplementedError

    @primitive(
        rows="logits",
        facts=lambda call: {
            "experts": call.logits.shape[1],
            "top_k": call.k,
            "scale": call.scale,
        },
        inherited=("dtype",),
    )
    def route(
        self,
        logits: Tensor,
        bias: Tensor,
        image_bias: Tensor,
        image_mask: Tensor,
        k: int,
        scale: float,
    ) -> Routing:
        """Choose k experts per row: logits [T, E] fp32 -> ids [T, k] int32, weights [T, k].

        score = sqrt(softplus(logit)). The choice is by score plus the row's bias (image_bias where
        image_mask), ties to the lower expert; the weights are the chosen scores without bias,
        normalised to sum to `scale` (7.1).
        """
        raise NotImplementedError

    @primitive(
        rows="a.values",
        facts=lambda call: {
            "top_k": call.routing.ids.shape[1],
            "group": call.group.size,
            **hidden_of(call.a.values),
        },
        inherited=("experts",),
    )
    def dispatch(self, a: Activation, routing: Routing, group: Group) -> Routed:
        """Send rows [T, H] to the processes and slots of their experts."""
        raise NotImplementedError

    @primitive(
        rows="gate",
        facts=lambda call: {
            "intermediate": call.gate.shape[1],
            "limit": call.limit,
            "numerics": call.numerics,
            "dtype": call.gate.dtype,
        },
    )
    def swiglu(
        self, gate: Tensor, up: Tensor, limit: float, weights: Tensor | None, numerics: Numerics
    ) -> Activation:
        """silu(min(gate, limit)) * clamp(up, -limit, limit) * weights, computed in fp32.

        gate, up [T, I] in the compute precision, weights [T] or None; limit 0 does not clamp. REF
        rounds the result to the compute precision; INFER quantises the fp32 result (7.2).
        """
        raise NotImplementedError

    @primitive(
        rows="routed.activation.values",
        facts=lambda call: {
            "top_k": call.routed.routing.ids.shape[1],
            "limit": call.limit,
            "numerics": call.numerics,
            "dtype": call.routed.activation.dtype,
            **_packed(call.experts),
        },
    )
    def expert_mlp(
        self, routed: Routed, experts: PackedExperts, limit: float, numerics: Numerics
    ) -> Routed:
        """Run every dispatched row through its experts; each output is rounded (7.2).

        Routing weights are applied before the down projection. An expert without rows costs
        nothing and changes nothing.
        """
        raise NotImplementedError

    @primitive(
        rows="shared",
        facts=lambda call: {
            "top_k": call.routed.routing.ids.shape[1],
            "numerics": call.numerics,
            **hidden_of(call.shared),
        },
    )
    def combine(self, routed: Routed, shared: Tensor, numerics: Numerics) -> Tensor:
        """Sum the outputs of each row's experts and the shared expert's [T, H]: -> [T, H].

        Expert outputs are summed fp32 in ascending order of expert. REF rounds that sum, then adds
        the shared output in the compute precision; INFER adds it in fp32 and rounds once (7.3).
        """
        raise NotImplementedError

    @step(
        rows="a.values",
        facts=lambda call: {
            "intermediate": call.weights.w1.shape[0],
            "weight": stored_kind(call.weights.w1),
            "limit": call.limit,
            "numerics": call.numerics,
            **hidden_of(call.a.values),
        },
    )
    def shared_mlp(
        self, a: Activation, weights: MlpWeights, limit: float, numerics: Numerics
    ) -> Tensor:
        """The shared expert: [T, H] -> [T, H], without routing weight."""
        gate = self.linear(a, weights.w1, a.dtype)
        up = self.linear(a, weights.w3, a.dtype)
        return self.linear(self.swiglu(gate, up, limit, None, numerics), weights.w2, a.dtype)

    @step(
        rows="a.values",
        facts=lambda call: {
            "top_k": call.router.top_k,
            "limit": call.limit,
            "group": call.group.size,
            "numerics": call.numerics,
            "dtype": call.a.dtype,
            **_packed(call.experts),
        },
    )
    def mixture(
        self,
        a: Activation,
        router: RouterWeights,
        experts: PackedExperts,
        shared: MlpWeights,
        image_mask: Tensor,
        limit: float,
        group: Group,
        numerics: Numerics,
    ) -> Tensor:
        """Routed and shared experts of one layer: a [T, H] -> [T, H]."""
        wide: torch.dtype = accumulation_dtype(a.dtype)
        logits = self.linear(Activation(a.values), router.gate, wide)
        routing = self.route(
            logits, router.bias, router.image_bias, image_mask, router.top_k, router.scale
        )
        routed = self.dispatch(a, routing, group)
        routed = self.expert_mlp(routed, experts, limit, numerics)
        return self.combine(routed, self.shared_mlp(a, shared, limit, numerics), numerics)
