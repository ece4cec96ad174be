"""`EngineOptions`: what a user can choose about an engine, validated in one place."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.backend import Numerics
from deepinfer.config import ModelConfig
from deepinfer.errors import NotBuiltYetError, UsageError

COMPUTE = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class EngineOptions:
    """Options of one engine.

    numerics: "auto" (INFER where the checkpoint asks for dynamic activation quantisation, else
    REF), "ref" or "infer". compute: "bf16", or "fp32" and "fp64" for debugging. max_model_len:
    tokens per sequence, prompt and output. max_num_batched_tokens: rows per step; longer prompts
    are computed in chunks. max_num_seqs: sequences that hold cache at the same time.
    expert_parallel_size: only 1 is built.
    """

    numerics: str = "auto"
    compute: str = "bf16"
    max_model_len: int = 4096
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 1
    expert_parallel_size: int = 1

    def __post_init__(self) -> None:
        if self.numerics not in ("auto", "ref", "infer"):
            raise UsageError(f"numerics is {self.numerics!r}; allowed: auto, ref, infer")
        if self.compute not in COMPUTE:
            raise UsageError(f"compute is {self.compute!r}; allowed: {', '.join(COMPUTE)}")
        for name in (
            "max_model_len",
            "max_num_batched_tokens",
            "max_num_seqs",
            "expert_parallel_size",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}; allowed: an integer of at least 1")
        if self.expert_parallel_size > 1:
            raise NotBuiltYetError(
                f"expert parallelism over {self.expert_parallel_size} devices is not built yet; "
                "use --ep 1"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Compute precision."""
        return COMPUTE[self.compute]

    def numerics_for(self, config: ModelConfig) -> Numerics:
        """The numeric mode for a checkpoint."""
        if self.numerics != "auto":
            return Numerics(self.numerics)
        quantisation = config.quantization
        dynamic = quantisation is not None and quantisation.activation_scheme == "dynamic"
        return Numerics.INFER if dynamic else Numerics.REF
