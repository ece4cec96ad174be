"""Mutants of the experts family: the reference with one fault each, named by its docstring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, Group, MlpWeights, Numerics, Routed, Routing
from deepinfer.conformance.case import Failure
from deepinfer.formats import Scheme, quantise
from tests.conformance.mutants.variant import Variant, with_arguments

# --- routing -----------------------------------------------------------------------------------


class BiasInWeights(Variant, seen_at="route model.vectors"):
    """The router's bias leaks into the weights."""

    def route(self, *arguments: Any) -> Routing:
        logits, bias, image_bias, image_mask, _k, scale = arguments
        ids = super().route(*arguments).ids
        scores = torch.sqrt(torch.nn.functional.softplus(logits))
        scores = scores + torch.where(image_mask[:, None], image_bias, bias)
        weights = scores.gather(1, ids.long())
        return Routing(ids, weights / weights.sum(-1, keepdim=True) * scale)


class BiasNeverRead(Variant, seen_at="route"):
    """The router's bias is loaded and never used."""

    route = with_arguments("route", bias=torch.zeros_like)


class ImageBiasNeverRead(Variant, seen_at="route mixture"):
    """Experts of image tokens are chosen with the bias of text."""

    def route(self, *arguments: Any) -> Routing:
        logits, bias, _, *rest = arguments
        return super().route(logits, bias, bias, *rest)


class ScaleOfWeightsMissing(Variant, seen_at="route"):
    """Routing weights sum to one."""

    route = with_arguments("route", scale=lambda scale: 1.0)


class HigherExpertFirst(Variant, seen_at="route"):
    """Equal scores choose the higher expert."""

    def route(self, *arguments: Any) -> Routing:
        logits, bias, image_bias, *rest = arguments
        flipped = super().route(logits.flip(1), bias.flip(0), image_bias.flip(0), *rest)
        return flipped._replace(ids=logits.shape[1] - 1 - flipped.ids)


# --- SwiGLU ------------------------------------------------------------------------------------


class ClampDropped(Variant, seen_at="swiglu"):
    """SwiGLU does not clamp."""

    swiglu = with_arguments("swiglu", limit=lambda limit: 0.0)


class GateClampedBelow(Variant, seen_at="swiglu"):
    """SwiGLU clamps the gate from below too."""

    def swiglu(self, *arguments: Any) -> Activation:
        gate, up, limit, *rest = arguments
        return super().swiglu(gate.clamp(min=-limit) if limit else gate, up, limit, *rest)


class QuantisedAfterRounding(Variant, seen_at="swiglu expert_mlp"):
    """SwiGLU rounds to bf16 before it quantises."""

    def swiglu(self, *arguments: Any) -> Activation:
        a = super().swiglu(*arguments)
        rounded = a.values.bfloat16().to(a.dtype)
        if a.scheme is None:
            return a
        return Activation(a.values, quantise(rounded, a.scheme), a.scheme)


class ClampedInPlace(Variant, seen_at="swiglu", failure=Failure.WRITE):
    """SwiGLU clamps its own input in place."""

    def swiglu(self, *arguments: Any) -> Activation:
        gate, _, limit, *_ = arguments
        if limit:
            gate.clamp_(max=limit)
        return super().swiglu(*arguments)


class WrittenPastTheEnd(Variant, seen_at="swiglu", failure=Failure.WRITE):
    """SwiGLU writes one element past the end of its input."""

    def swiglu(self, *arguments: Any) -> Activation:
        gate = arguments[0]
        if gate.numel() and gate.is_contiguous():
            longer = torch.as_strided(gate, (gate.numel() + 1,), (1,))
            longer[-1] = 0
        return super().swiglu(*arguments)


class NanSpreads(Variant, seen_at="swiglu", failure=Failure.NAN):
    """A row of NaN reaches its neighbours through a sum over rows."""

    def swiglu(self, *arguments: Any) -> Activation:
        gate, *rest = arguments
        shared = (gate * 0).sum(0, keepdim=True)
        return super().swiglu(torch.where(torch.isnan(shared), shared, gate), *rest)


# --- the experts -------------------------------------------------------------------------------


class WeightsSentInBf16(Variant, seen_at="dispatch"):
    """Routing weights travel to the experts in bf16."""

    def dispatch(self, a: Activation, routing: Routing, group: Group) -> Routed:
        weights = routing.weights.bfloat16().to(routing.weights.dtype)
        return super().dispatch(a, routing._replace(weights=weights), group)


class ChoicesSorted(Variant, seen_at="dispatch"):
    """A row's experts are sent in ascending order, their weights in the order of choice."""

    dispatch = with_arguments(
        "dispatch", routing=lambda routing: routing._replace(ids=routing.ids.sort(1).values)
    )


class WeightAfterProjection(Variant, seen_at="expert_mlp"):
    """Routing weights are applied to what the experts return."""

    def expert_mlp(self, *arguments: Any) -> Routed:
        routed, *rest = arguments
        weights = routed.routing.weights
        plain = Routing(routed.routing.ids, torch.ones_like(weights))
        done = super().expert_mlp(Routed(routed.activation, plain, routed.group), *rest)
        assert done.outputs is not None
        outputs = (done.outputs * weights[..., None]).to(done.outputs.dtype)
        return Routed(routed.activation, routed.routing, routed.group, outputs)


class LastRowsOfExpertLost(Variant, seen_at="expert_mlp"):
    """Only the first 16 rows of an expert are run."""

    def expert_mlp(self, *arguments: Any) -> Routed:
        done = super().expert_mlp(*arguments)
        ids = done.routing.ids.flatten()
        seen: dict[int, int] = {}
        assert done.outputs is not None
        for pair, expert in enumerate(ids.tolist()):
            seen[expert] = seen.get(expert, 0) + 1
            if seen[expert] > 16:
                done.outputs.view(len(ids), -1)[pair] = 0
        return done


class _WideSums(Variant):
    """Experts sum in float64 in some calls: right within every limit, with other bits."""

    def _wide(self, rows: int) -> bool:
        raise NotImplementedError

    def expert_mlp(self, *arguments: Any) -> Routed:
        routed, experts, limit, numerics = arguments
        a = routed.activation
        if (
            a.dtype != torch.float32
            or numerics is not Numerics.REF
            or not self._wide(len(a.values))
        ):
            return super().expert_mlp(*arguments)
        wide = Routed(Activation(a.values.double()), routed.routing, routed.group)
        outputs = super().expert_mlp(wide, experts, limit, numerics).outputs
        assert outputs is not None
        routed.outputs = outputs.to(a.dtype)
        return routed


class SumOfBatch(_WideSums, seen_at="expert_mlp", failure=Failure.BATCH):
    """How a row is summed depends on how many there are."""

    def _wide(self, rows: int) -> bool:
        return rows == 1


class SumOfRun(_WideSums, seen_at="expert_mlp", failure=Failure.REPEAT):
    """Every second call sums in another way."""

    calls = 0

    def _wide(self, rows: int) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


class OtherSums(_WideSums):
    """No fault: always sums in float64."""

    def _wide(self, rows: int) -> bool:
        return True


class SharedUpNeverRead(Variant, seen_at="shared_mlp"):
    """The shared expert's w3 is loaded and never used: the gate's matrix stands in."""

    shared_mlp = with_arguments(
        "shared_mlp", weights=lambda own: MlpWeights(own.w1, own.w2, own.w1)
    )


class SharedExpertMissing(Variant, seen_at="combine"):
    """The shared expert is not added."""

    combine = with_arguments("combine", shared=torch.zeros_like)


class SummedInOrderOfChoice(Variant, seen_at="combine"):
    """Experts' outputs are summed best first, not in ascending order of expert."""

    def combine(self, routed: Routed, shared: Tensor, numerics: Numerics) -> Tensor:
        k = routed.routing.ids.shape[1]
        order = torch.arange(k, dtype=torch.int32).expand_as(routed.routing.ids)
        changed = replace(routed, routing=routed.routing._replace(ids=order))
        return super().combine(changed, shared, numerics)


class SumNotRounded(Variant, seen_at="combine"):
    """The sum of the experts keeps its digits when the shared output is added, in REF too."""

    combine = with_arguments("combine", numerics=lambda numerics: Numerics.INFER)


class InputQuantisedInRef(Variant, seen_at="expert_mlp"):
    """Experts quantise their input in REF as well."""

    def expert_mlp(self, *arguments: Any) -> Routed:
        routed, *rest = arguments
        a, scheme = routed.activation, Scheme.FP8_BLOCK32
        quantised = Activation(a.values, quantise(a.values, scheme), scheme)
        return super().expert_mlp(Routed(quantised, routed.routing, routed.group), *rest)
