"""Published checkpoints: compared with their configuration, measured, then read on demand."""

from deepinfer.checkpoint.checkpoint import Checkpoint
from deepinfer.checkpoint.kinds import Component, ExpectedTensor, Kind, Part
from deepinfer.checkpoint.plan import MemoryPlan
from deepinfer.checkpoint.source import FileSource
from deepinfer.checkpoint.tensors import expected_tensors

__all__ = [
    "Checkpoint",
    "Component",
    "ExpectedTensor",
    "FileSource",
    "Kind",
    "MemoryPlan",
    "Part",
    "expected_tensors",
]
