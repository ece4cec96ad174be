"""Parameters of a model: by component, kind and part, and how many one token uses.

Source: model specification, sections 2.4 and 6.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer.checkpoint.kinds import Component, ExpectedTensor, Kind, Part
from deepinfer.config.model import ModelConfig

if TYPE_CHECKING:
    from deepinfer.checkpoint.checkpoint import Checkpoint

# What multiplies every token in a block. Router biases are added to scores and are not counted.
BLOCK_PARTS = frozenset(
    {Part.ATTENTION, Part.SHARED_EXPERTS, Part.ROUTER, Part.HYPER_CONNECTION, Part.NORM}
)
COMPRESSED_PARTS = frozenset({Part.COMPRESSOR, Part.INDEX_KEY, Part.INDEXER})


@dataclass(frozen=True)
class Tally:
    """Stored tensors of one component and kind.

    kind: "fp8", "fp4", "fp8 table", "bf16" or "fp32", as stored. tensors: values; scales: their
    scale tensors; parameters: values, scales not counted; stored_bytes: both.
    """

    component: str
    kind: str
    tensors: int
    scales: int
    parameters: int
    stored_bytes: int


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by role (section 2.4). `backbone` is the language model without Engram tables."""

    routed_experts: int
    other_backbone: int
    engram_tables: int
    draft: int
    vision: int

    @property
    def backbone(self) -> int:
        """Routed experts and everything else of the language model but the Engram tables."""
        return self.routed_experts + self.other_backbone

    @property
    def total(self) -> int:
        """All components."""
        return self.backbone + self.engram_tables + self.draft + self.vision


@dataclass(frozen=True)
class ActiveParameters:
    """Matmul parameters that one token uses (section 6.5).

    encoder: layers before the first decoder layer. decoder_kv: the decoder's compressed KV and
    index-key projections, which every prompt token needs. decoder: all of the decoder's layers.
    head: the output projection. draft: the draft stages per draft position.
    compact: whether prefill may skip the decoder (section 6.3).
    """

    encoder: int
    decoder_kv: int
    decoder: int
    head: int
    draft: int
    compact: bool

    @property
    def prefill(self) -> int:
        """Per prompt token: the encoder alone where prefill may be compact, else all layers."""
        return self.encoder if self.compact else self.encoder + self.decoder

    @property
    def decode(self) -> int:
        """Per generated token: all layers and the head."""
        return self.encoder + self.decoder + self.head


def tally(checkpoint: Checkpoint) -> list[Tally]:
    """All stored tensors by component and stored kind, sorted."""
    plain = {"BF16": Kind.BF16.value, "F32": Kind.FP32.value}
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for tensor in checkpoint.expected():
        kind = plain.get(checkpoint.stored_dtype(tensor.name), tensor.kind.value)
        entry = sums[tensor.component.value, kind]
        scaled = tensor.kind.quantised and checkpoint.has(tensor.scale_name)
        entry[0] += 1
        entry[1] += scaled
        entry[2] += tensor.parameters
        entry[3] += checkpoint.stored_bytes(tensor.name)
        entry[3] += checkpoint.stored_bytes(tensor.scale_name) if scaled else 0
    order = [component.value for component in Component]
    keys = sorted(sums, key=lambda key: (order.index(key[0]), key[1]))
    return [Tally(*key, *sums[key]) for key in keys]


def count_parameters(expected: Iterable[ExpectedTensor]) -> ParameterCount:
    """Parameters by role; scales are not parameters."""
    counts: dict[Component, int] = defaultdict(int)
    routed = tables = 0
    for tensor in expected:
        counts[tensor.component] += tensor.parameters
        if tensor.component is Component.TEXT:
            routed += tensor.parameters if tensor.part is Part.ROUTED_EXPERTS else 0
            tables += tensor.parameters if tensor.part is Part.ENGRAM_TABLE else 0
    return ParameterCount(
        routed_experts=routed,
        other_backbone=counts[Component.TEXT] - routed - tables,
        engram_tables=tables,
        draft=counts[Component.DRAFT],
        vision=counts[Component.VISION],
    )


def active_parameters(config: ModelConfig, expected: Iterable[ExpectedTensor]) -> ActiveParameters:
    """Parameters that one token multiplies with; lookups (embedding, Engram rows) are none."""
    text = config.text
    border = text.first_decoder_layer
    first_decoder = text.num_hidden_layers if border is None else border
    blocks: dict[Component, dict[int, int]] = {
        Component.TEXT: defaultdict(int),
        Component.DRAFT: defaultdict(int),
    }
    decoder_kv = head = 0
    for tensor in expected:
        if tensor.part is Part.HEAD:
            head += tensor.parameters
        if tensor.layer < 0 or tensor.component is Component.VISION:
            continue
        layer = blocks[tensor.component]
        if tensor.part is Part.ROUTED_EXPERTS:
            draft = tensor.component is Component.DRAFT
            total = text.dspark_n_routed_experts if draft else text.n_routed_experts
            used = text.dspark_num_experts_per_tok if draft else text.num_experts_per_tok
            if int(tensor.name.split(".")[4]) < min(used, total):
                layer[tensor.layer] += tensor.parameters
        elif tensor.part in COMPRESSED_PARTS or tensor.part is Part.ENGRAM_PROJECTION:
            layer[tensor.layer] += tensor.parameters
            if tensor.layer >= first_decoder and tensor.part in (Part.COMPRESSOR, Part.INDEX_KEY):
                decoder_kv += tensor.parameters
        elif tensor.part in BLOCK_PARTS:
            layer[tensor.layer] += tensor.parameters
    backbone = blocks[Component.TEXT]
    compact = border is not None and max(text.kv_source_layer_ids) <= border
    return ActiveParameters(
        encoder=sum(count for layer, count in backbone.items() if layer < first_decoder),
        decoder_kv=decoder_kv,
        decoder=sum(count for layer, count in backbone.items() if layer >= first_decoder),
        head=head,
        draft=sum(blocks[Component.DRAFT].values()),
        compact=compact,
    )
