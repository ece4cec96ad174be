"""Loads the weights of the backbone: which published tensor becomes which argument of operators.

Values are only touched by the packing operators of a backend. Source: model specification, section
2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from deepinfer.backend import (
    AttentionWeights,
    CompressorWeights,
    Contract,
    EngramWeights,
    ExpertSource,
    IndexerWeights,
    LinearSource,
    MixSite,
    MlpWeights,
    NgramHash,
    OutputWeights,
    PackedExperts,
    PackedLinear,
    PackedTable,
    RouterWeights,
    Source,
    SubLayer,
)
from deepinfer.config import LayerPlan, ModelConfig, TextConfig
from deepinfer.model.rotary import layer_frequencies


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one backbone layer, packed for the operators."""

    plan: LayerPlan
    attention_site: SubLayer
    mixture_site: SubLayer
    attention: AttentionWeights
    output: OutputWeights
    sink: Tensor
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None
    engram: EngramWeights | None
    router: RouterWeights
    experts: PackedExperts
    shared: MlpWeights


@dataclass(frozen=True)
class BackboneWeights:
    """The weights of the whole text model. norm [H]. head [V, H]."""

    embedding: PackedTable
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: PackedLinear


class PublishedWeights(Protocol):
    """What `WeightLoader` needs of a checkpoint; see `Checkpoint`."""

    @property
    def config(self) -> ModelConfig:
        """The configuration of the checkpoint."""

    def source(self, name: str) -> Source:
        """The tensor `name`."""

    def linear(self, prefix: str) -> LinearSource:
        """The matrix or table `prefix`.weight."""

    def expert(self, prefix: str) -> ExpertSource:
        """The three matrices of the expert `prefix`."""


class WeightLoader:
    """Loads the text component of a checkpoint through packing operators."""

    def __init__(
        self,
        checkpoint: PublishedWeights,
        operators: Contract,
        pad_id: int,
        resident_tables: bool = False,
    ) -> None:
        """pad_id: the compressed id for absent tokens of n-grams.

        resident_tables: Engram's tables must be in the memory of the device.
        """
        self._resident_tables = resident_tables
        self._checkpoint = checkpoint
        self._operators = operators
        self._text: TextConfig = checkpoint.config.text
        self._pad_id = pad_id
        self._frequencies: dict[bool, Tensor] = {}

    def load(
        self,
        advance: Callable[[int], None] = lambda count: None,
        indices: Iterable[int] | None = None,
    ) -> BackboneWeights:
        """Load the layers `indices`, by default all; `advance(1)` is called after each."""
        layers = []
        for index in range(self._text.num_hidden_layers) if indices is None else indices:
            layers.append(self.layer(index))
            advance(1)
        embedding = self._operators.pack_table(self._checkpoint.linear("embed"))
        return BackboneWeights(
            embedding, tuple(layers), self._vector("norm.weight"), self._linear("head")
        )

    def layer(self, index: int) -> LayerWeights:
        """Load one backbone layer."""
        plan = self._text.layer(index)
        prefix = f"layers.{index}"
        frequencies = self._frequencies_of(plan.ratio)
        return LayerWeights(
            plan=plan,
            attention_site=self._sub_layer(prefix, "attn"),
            mixture_site=self._sub_layer(prefix, "ffn"),
            attention=self._attention(f"{prefix}.attn", frequencies),
            output=self._output(f"{prefix}.attn", frequencies),
            sink=self._vector(f"{prefix}.attn.attn_sink"),
            compressor=self._compressor(f"{prefix}.attn", plan, frequencies),
            indexer=self._indexer(f"{prefix}.attn", plan, frequencies),
            engram=self._engram(f"{prefix}.engram", index) if plan.engram else None,
            router=self._router(f"{prefix}.ffn"),
            experts=self._experts(f"{prefix}.ffn", self._text.n_routed_experts),
            shared=MlpWeights(
                *(self._linear(f"{prefix}.ffn.shared_experts.{w}") for w in ("w1", "w2", "w3"))
            ),
        )

    def _linear(self, prefix: str) -> PackedLinear:
        return self._operators.pack_linear(self._checkpoint.linear(prefix))

    def _vector(self, name: str) -> Tensor:
        return self._operators.pack_vector(self._checkpoint.source(name))

    def _frequencies_of(self, ratio: int) -> Tensor:
        compressed = ratio > 0
        if compressed not in self._frequencies:
            values = layer_frequencies(self._text, ratio)
            self._frequencies[compressed] = values.to(self._operators.device)
        return self._frequencies[compressed]

    def _sub_layer(self, prefix: str, name: str) -> SubLayer:
        text = self._text
        site = MixSite(
            fn=self._vector(f"{prefix}.hc_{name}_fn"),
            base=self._vector(f"{prefix}.hc_{name}_base"),
            scale=self._vector(f"{prefix}.hc_{name}_scale"),
            iterations=text.hc_sinkhorn_iters,
            eps=text.hc_eps,
            norm_eps=text.rms_norm_eps,
        )
        return SubLayer(site, self._vector(f"{prefix}.{name}_norm.weight"), text.rms_norm_eps)

    def _attention(self, prefix: str, frequencies: Tensor) -> AttentionWeights:
        text = self._text
        return AttentionWeights(
            wq_a=self._linear(f"{prefix}.wq_a"),
            q_norm=self._vector(f"{prefix}.q_norm.weight"),
            wq_b=self._linear(f"{prefix}.wq_b"),
            wkv=self._linear(f"{prefix}.wkv"),
            kv_norm=self._vector(f"{prefix}.kv_norm.weight"),
            frequencies=frequencies,
            num_heads=text.num_attention_heads,
            head_dim=text.head_dim,
            eps=text.rms_norm_eps,
        )

    def _output(self, prefix: str, frequencies: Tensor) -> OutputWeights:
        return OutputWeights(
            self._linear(f"{prefix}.wo_a"),
            self._linear(f"{prefix}.wo_b"),
            frequencies,
            self._text.o_groups,
        )

    def _compressor(
        self, prefix: str, plan: LayerPlan, frequencies: Tensor
    ) -> CompressorWeights | None:
        if plan.role != "full":
            return None
        return CompressorWeights(
            wkv=self._linear(f"{prefix}.compressor.wkv"),
            wgate=self._linear(f"{prefix}.compressor.wgate") if plan.ratio > 1 else None,
            norm=self._vector(f"{prefix}.compressor.norm.weight"),
            wk=self._linear(f"{prefix}.indexer.wk"),
            k_norm=self._vector(f"{prefix}.indexer.k_norm.weight"),
            frequencies=frequencies,
            ratio=plan.ratio,
            eps=self._text.rms_norm_eps,
        )

    def _indexer(self, prefix: str, plan: LayerPlan, frequencies: Tensor) -> IndexerWeights | None:
        if plan.role not in ("full", "reindex"):
            return None
        text = self._text
        return IndexerWeights(
            wq_b=self._linear(f"{prefix}.indexer.wq_b"),
            weights_proj=self._linear(f"{prefix}.indexer.weights_proj"),
            frequencies=frequencies,
            num_heads=text.index_n_heads,
            head_dim=text.index_head_dim,
            top_k=text.index_topk,
            ratio=plan.ratio,
            candidate_block=text.candidate_block_size,
            candidate_blocks=text.candidate_topk_blocks if plan.candidate_source else 0,
        )

    def _engram(self, prefix: str, layer: int) -> EngramWeights:
        constants = self._text.engram_hashes[layer]
        tensor = self._operators.tensor
        table = self._checkpoint.linear(f"{prefix}.embed")
        return EngramWeights(
            table=self._operators.pack_table(replace(table, resident=self._resident_tables)),
            hash=NgramHash(
                multipliers=tensor(constants.multipliers, torch.int64),
                primes=tensor(constants.primes, torch.int64),
                offsets=tensor(constants.offsets, torch.int64),
                heads=self._text.engram_n_heads,
                pad=self._pad_id,
            ),
            wkv=self._linear(f"{prefix}.wkv"),
            q_weight=self._vector(f"{prefix}.q_weight"),
            k_weight=self._vector(f"{prefix}.k_weight"),
            eps=self._text.rms_norm_eps,
        )

    def _router(self, prefix: str) -> RouterWeights:
        text = self._text
        return RouterWeights(
            gate=self._linear(f"{prefix}.gate"),
            bias=self._vector(f"{prefix}.gate.bias"),
            image_bias=self._vector(f"{prefix}.gate.bias_vl"),
            top_k=text.num_experts_per_tok,
            scale=text.routed_scaling_factor,
        )

    def _experts(self, prefix: str, count: int) -> PackedExperts:
        sources = [self._checkpoint.expert(f"{prefix}.experts.{e}") for e in range(count)]
        return self._operators.pack_experts(sources)
