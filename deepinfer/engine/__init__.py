"""The engine: requests in, tokens out, on a model that runs one batch of rows a step."""

from deepinfer.engine.engine import Engine
from deepinfer.engine.open import default_checkpoint, open_engine
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.runner import ModelRunner, call_limits
from deepinfer.engine.sampling_params import SamplingParams

__all__ = [
    "Engine",
    "EngineOptions",
    "ModelRunner",
    "SamplingParams",
    "call_limits",
    "default_checkpoint",
    "open_engine",
]
