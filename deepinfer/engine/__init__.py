"""Requests, steps and the loop around the model."""

from deepinfer.engine.batching import Chunk, NgramHistory, build_batch
from deepinfer.engine.engine import Engine, Generated, call_limits
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.sampling_params import SamplingParams

__all__ = [
    "Chunk",
    "Engine",
    "EngineOptions",
    "Generated",
    "NgramHistory",
    "SamplingParams",
    "build_batch",
    "call_limits",
]
