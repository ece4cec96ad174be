"""What the operators of a layer were given and returned, with matmuls by the name of their weight.

A tap on the resolved table sees every operator. What the reference does inside `expert_mlp` it does
on its own, so its products and SwiGLUs there are watched too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from torch import Tensor

import deepinfer_reference.dense
import deepinfer_reference.experts
from deepinfer.backend import Activation, Batch, PackedLinear
from deepinfer.cache import CachePools
from deepinfer.model import Backbone, LayerWeights, Residual, Selections
from deepinfer_reference.packed import ReferenceExperts, ReferenceLinear


@dataclass
class Call:
    """One operator call; arguments in the order of the contract."""

    operator: str
    arguments: tuple[Any, ...]
    result: Any


@dataclass
class Product:
    """One matrix product of the reference: operand [T, K], the weight, result [T, M]."""

    operand: Tensor
    weight: ReferenceLinear
    result: Tensor


@dataclass
class Recording:
    """Calls in order; products and SwiGLUs inside `expert_mlp`; every product's operand."""

    names: dict[int, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    expert_products: list[Product] = field(default_factory=list)
    expert_swiglus: list[Call] = field(default_factory=list)

    def tap(self, operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        if operator == "store":
            arguments = (arguments[0].clone(), *arguments[1:])
        self.calls.append(Call(operator, arguments, result))

    def of(self, operator: str) -> list[Call]:
        """All calls of an operator, in order."""
        return [call for call in self.calls if call.operator == operator]

    def matmul(self, name: str) -> Call:
        """The one `linear` or `grouped_linear` call with this weight."""
        found = [
            call
            for call in self.of("linear") + self.of("grouped_linear")
            if self.names[id(call.arguments[1])] == name
        ]
        assert len(found) == 1, f"{len(found)} matmuls with {name}"
        return found[0]


@dataclass
class LayerRecord:
    """One layer's run: what it started from and what its operators did.

    members: the compressor's pending members before the step, None without such a compressor.
    """

    weights: LayerWeights
    residual: Residual
    candidates: Tensor | None
    selected: Tensor | None
    members: Tensor | None
    recording: Recording
    batch: Batch
    pools: CachePools


def named_weights(layer: LayerWeights) -> Iterator[tuple[str, PackedLinear]]:
    """Packed matrices of a layer by the names of the published tensors they should hold."""
    for part in ("wq_a", "wq_b", "wkv"):
        yield f"attn.{part}", getattr(layer.attention, part)
    for part in ("wo_a", "wo_b"):
        yield f"attn.{part}", getattr(layer.output, part)
    if layer.compressor is not None:
        yield "attn.compressor.wkv", layer.compressor.wkv
        yield "attn.indexer.wk", layer.compressor.wk
        if layer.compressor.wgate is not None:
            yield "attn.compressor.wgate", layer.compressor.wgate
    if layer.indexer is not None:
        yield "attn.indexer.wq_b", layer.indexer.wq_b
        yield "attn.indexer.weights_proj", layer.indexer.weights_proj
    if layer.engram is not None:
        yield "engram.wkv", layer.engram.wkv
    yield "ffn.gate", layer.router.gate
    for part in ("w1", "w2", "w3"):
        yield f"ffn.shared_experts.{part}", getattr(layer.shared, part)
    assert isinstance(layer.experts, ReferenceExperts)
    for number, expert in enumerate(layer.experts.experts):
        for part in ("w1", "w2", "w3"):
            yield f"ffn.experts.{number}.{part}", getattr(expert, part)


@contextmanager
def watched(engine_operators: Any, backend: Any, recording: Recording) -> Iterator[Any]:
    """The table with a tap, while the reference's products are watched."""
    in_dense, in_experts = deepinfer_reference.dense.product, deepinfer_reference.experts.product
    swiglu = backend.swiglu

    def product(inner: Any, kept: list[Product] | None) -> Any:
        def call(x: Tensor, weight: ReferenceLinear, *rest: Any) -> Tensor:
            result: Tensor = inner(x, weight, *rest)
            recording.products.append(Product(x, weight, result))
            if kept is not None:
                kept.append(Product(x, weight, result))
            return result

        return call

    def expert_swiglu(*arguments: Any) -> Activation:
        result: Activation = swiglu(*arguments)
        recording.expert_swiglus.append(Call("swiglu", arguments, result))
        return result

    with (
        patch("deepinfer_reference.dense.product", product(in_dense, None)),
        patch(
            "deepinfer_reference.experts.product", product(in_experts, recording.expert_products)
        ),
        patch.object(backend, "swiglu", expert_swiglu),
    ):
        yield engine_operators.tapped(recording.tap)


def record_layers(
    backbone: Backbone, backend: Any, batch: Batch, pools: CachePools
) -> list[LayerRecord]:
    """Run a batch through all layers, pending outputs as in `Backbone.run`, and keep all."""
    residual, selections = backbone.begin(batch), Selections()
    records = []
    for layer in backbone.weights.layers:
        record, residual = record_layer(
            backbone, backend, layer, residual, selections, batch, pools
        )
        records.append(record)
    return records


def record_layer(
    backbone: Backbone,
    backend: Any,
    layer: LayerWeights,
    residual: Residual,
    selections: Selections,
    batch: Batch,
    pools: CachePools,
) -> tuple[LayerRecord, Residual]:
    """Run one layer and keep what it did."""
    recording = Recording({id(packed): name for name, packed in named_weights(layer)})
    state = pools.compressor(layer.plan.index) if layer.compressor is not None else None
    record = LayerRecord(
        layer,
        residual,
        selections.candidates,
        selections.selection.indices if selections.selection is not None else None,
        state.members.clone() if state is not None else None,
        recording,
        batch,
        pools,
    )
    untapped = backbone.operators
    with watched(untapped, backend, recording) as tapped:
        backbone.operators = tapped
        try:
            after = backbone.layer(layer, residual, selections, batch, pools)
        finally:
            backbone.operators = untapped
    return record, after
