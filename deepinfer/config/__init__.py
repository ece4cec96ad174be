"""The configuration of a checkpoint: config.json, its rules, and numbers that follow from it."""

from deepinfer.config.engram import EngramHash, engram_hashes
from deepinfer.config.limits import Limit, release_limits
from deepinfer.config.model import (
    ModelConfig,
    QuantizationConfig,
    TextConfig,
    UnknownConfigKeyWarning,
    VisionConfig,
    YarnConfig,
)
from deepinfer.config.schedule import LayerPlan

__all__ = [
    "EngramHash",
    "LayerPlan",
    "Limit",
    "ModelConfig",
    "QuantizationConfig",
    "TextConfig",
    "UnknownConfigKeyWarning",
    "VisionConfig",
    "YarnConfig",
    "engram_hashes",
    "release_limits",
]
