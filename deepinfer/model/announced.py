"""`AnnouncedCheckpoint`: the weights that a configuration requires, without a file or a value."""

from __future__ import annotations

from deepinfer.backend import ExpertSource, LinearSource
from deepinfer.backend.shapes import ShapeSource
from deepinfer.checkpoint import Kind
from deepinfer.checkpoint.tensors import expected_tensors
from deepinfer.config import ModelConfig

EXPERT = ".experts."


class AnnouncedCheckpoint:
    """A checkpoint for `WeightLoader` whose sources have kinds and shapes and no values.

    Block scales are left out. Without a quantization_config every matrix is bf16. All experts of a
    layer are represented by the first one, since their shapes are equal.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._expected = {tensor.name: tensor for tensor in expected_tensors(config, experts=1)}
        self._experts: dict[str, ExpertSource] = {}

    def source(self, name: str) -> ShapeSource:
        """The tensor `name`; KeyError where the configuration has none."""
        tensor = self._expected[name]
        kind, shape = tensor.kind, tensor.shape
        if kind.quantised and self.config.quantization is None:
            kind = Kind.BF16
        if kind is Kind.FP4:
            shape = (shape[0], shape[1] // 2)
        return ShapeSource(name, kind.code_dtype, shape)

    def linear(self, prefix: str) -> LinearSource:
        """The matrix or table `prefix`.weight, without scales."""
        return LinearSource(self.source(f"{prefix}.weight"))

    def expert(self, prefix: str) -> ExpertSource:
        """The three matrices of an expert."""
        first = f"{prefix.partition(EXPERT)[0]}{EXPERT}0"
        if first not in self._experts:
            matrices = (self.linear(f"{first}.{name}") for name in ("w1", "w2", "w3"))
            self._experts[first] = ExpertSource(*matrices)
        return self._experts[first]
