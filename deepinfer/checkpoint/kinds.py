"""What a required tensor is: its component, how it is published, its role in the network.

Source: model specification, sections 2.2 and 2.3.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

BLOCK = 32  # rows and columns of an FP8 tile, and columns of an FP4 or table group


class Component(StrEnum):
    """What can be loaded apart: the language model, its draft module, the vision front end."""

    TEXT = "text"
    DRAFT = "draft"
    VISION = "vision"


class Kind(StrEnum):
    """How a value is published.

    FP8: E4M3 with one scale per 32x32 tile. FP4: two E2M1 per byte, one scale per row and 32
    columns. TABLE: E4M3 with one scale per row and 32 columns. These three may be BF16 or F32 where
    quantization_config is absent. BF16, FP32: unquantised, published in this dtype; the other of
    the two is accepted and kept as stored.
    """

    FP8 = "fp8"
    FP4 = "fp4"
    TABLE = "fp8 table"
    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def quantised(self) -> bool:
        """Whether scales belong to the stored codes."""
        return self in (Kind.FP8, Kind.FP4, Kind.TABLE)

    @property
    def code_dtype(self) -> str:
        """The safetensors dtype of the published form."""
        return _CODE_DTYPES[self]


_CODE_DTYPES = {
    Kind.FP8: "F8_E4M3",
    Kind.FP4: "I8",
    Kind.TABLE: "F8_E4M3",
    Kind.BF16: "BF16",
    Kind.FP32: "F32",
}


class Part(StrEnum):
    """The role of a value in the network, for counting parameters."""

    EMBEDDING = "embedding"
    HEAD = "head"
    NORM = "norms and sinks"  # those of every block
    OTHER_NORM = "other norms"
    ATTENTION = "attention"
    COMPRESSOR = "compressor"
    INDEX_KEY = "index key"
    INDEXER = "indexer"
    ROUTER = "router"
    ROUTER_BIAS = "router bias"
    ROUTED_EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    HYPER_CONNECTION = "hyper-connections"
    ENGRAM_TABLE = "engram table"
    ENGRAM_PROJECTION = "engram projection"
    ENGRAM_GATE = "engram gate"
    DRAFT_PROJECTION = "draft projection"
    MARKOV_HEAD = "Markov head"
    CONFIDENCE_HEAD = "confidence head"
    VISION_TOWER = "vision tower"
    ALIGNER = "aligner"
    DELIMITER = "image delimiters"


class ExpectedTensor(NamedTuple):
    """One required value. `shape` is logical: an FP4 byte counts as its two columns.

    `layer` is the index within `layers.*` or `mtp.*`, -1 for tensors of no layer.
    """

    name: str
    component: Component
    kind: Kind
    shape: tuple[int, ...]
    part: Part
    layer: int

    @property
    def parameters(self) -> int:
        """Number of values, scales not counted."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def scale_name(self) -> str:
        """Name of the scales; only quantised kinds have any."""
        return self.name.removesuffix("weight") + "scale"

    @property
    def code_shape(self) -> tuple[int, ...]:
        """Stored shape of the published form."""
        if self.kind is Kind.FP4:
            return (self.shape[0], self.shape[1] // 2)
        return self.shape

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Stored shape of the scales of a quantised kind."""
        rows, columns = self.shape
        groups = -(-columns // BLOCK)
        return (-(-rows // BLOCK) if self.kind is Kind.FP8 else rows, groups)


def component_of(name: str) -> Component:
    """The component that a required tensor, or its scales, belongs to."""
    if name.startswith("mtp."):
        return Component.DRAFT
    if name.startswith(("vision.", "aligner.", "image_")):
        return Component.VISION
    return Component.TEXT
