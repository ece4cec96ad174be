"""`EngineOptions`: the options of an engine, checked when they are made.

Names are those of the vendor's engine and of vLLM. Source: engine specification, section 1.4.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.backend import Numerics
from deepinfer.config import ModelConfig
from deepinfer.errors import NotBuiltYetError, UsageError
from deepinfer.formats.dtypes import COMPUTE_DTYPES

CACHE = ("fp4", "bf16")
BLOCK_TOKENS = 128
DEFAULT_BATCHED_TOKENS = 2048

_PARALLEL = {
    "expert_parallel_size": ("expert parallelism", (1,)),
    "data_parallel_size": ("data parallelism", (0, 1)),
    "context_parallel_size": ("context parallelism", (1,)),
    "engram_parallel_size": ("Engram parallelism", (0, 1)),
    "engine_rank": ("more than one engine rank", (0,)),
    "engine_group_rank": ("more than one engine group", (0,)),
}
"""Options of features that are not built yet: the feature, and the values allowed until then."""

_HINTS = {
    "decode_sequence": "results carry both: use their .text or .token_ids",
    "trust_remote_code": "code in a checkpoint is never run; leave it out",
    "served_model_name": "there is no server yet; leave it out",
    "ignore_len": "the vendor's engine never read it; leave it out",
    "offline_inference": "the vendor's engine never read it; leave it out",
    "tokenizer_revision": "a tokenizer comes with its checkpoint; use revision",
    "enforce_eager": "set DEEPINFER_ENFORCE_EAGER",
    "tensor_parallel_size": "use expert_parallel_size",
    "kv_cache_dtype": "use cache_dtype",
    "block_size": "use tokens_per_block, which is 128",
    "enable_chunked_prefill": "use chunked_prefill",
    "num_gpu_blocks_override": "use num_blocks",
}
"""Options of other engines that do not exist here, and what to do instead."""


@dataclass(frozen=True)
class EngineOptions:
    """Options of one engine.

    numerics: "ref", "infer" or "auto", which is INFER where the checkpoint asks for dynamic
    activation quantisation, else REF. compute: "bf16", or "fp32" and "fp64" for debugging.
    cache_dtype: "fp4", the published format of entries, or "bf16", which keeps main and index
    entries in bfloat16. "bf16" serves comparisons: only the reference backend has it, it takes more
    memory, and such a cache cannot be exported.

    max_model_len: the most tokens of a sequence, prompt and output together; None: the model's
    limit, or less where the memory does not hold as much. max_num_batched_tokens: the most rows of
    a step; None: 2048, or more where max_num_seqs, or a whole prompt without chunked prefill, needs
    it. max_num_seqs: the most sequences that run at the same time. chunked_prefill: a prompt longer
    than a step is computed in chunks; False refuses it. lookahead_tokens: the fewest rows of any
    chunk but a prompt's last. stop_preempted_request: end a preempted request instead of computing
    it again.

    num_blocks: context blocks of 128 tokens; None: as many as fit into gpu_memory_utilization, the
    share of the device's memory for weights and cache, but no more than max_num_seqs sequences of
    max_model_len need. tokens_per_block: 128, or -1 for the same.

    seed: requests without a seed get repeatable ones derived from it; None: random ones.
    load_format: "auto". disable_log_stats: no statistics line. steps_in_flight: 0; running a step
    while the next one is planned is not built yet. The parallel sizes and ranks allow only one
    device, since parallelism is not built yet.
    """

    numerics: str = "auto"
    compute: str = "bf16"
    cache_dtype: str = "fp4"
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256
    chunked_prefill: bool = True
    lookahead_tokens: int = 0
    stop_preempted_request: bool = False
    num_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    tokens_per_block: int = -1
    seed: int | None = None
    load_format: str = "auto"
    disable_log_stats: bool = False
    steps_in_flight: int = 0
    engine_type: str = "normal"
    expert_parallel_size: int = 1
    data_parallel_size: int = 0
    context_parallel_size: int = 1
    engram_parallel_size: int = 0
    engine_rank: int = 0
    engine_group_rank: int = 0

    def __post_init__(self) -> None:
        _choice("numerics", self.numerics, ("auto", "ref", "infer"))
        _choice("compute", self.compute, tuple(COMPUTE_DTYPES))
        _choice("cache_dtype", self.cache_dtype, CACHE)
        for name in ("max_model_len", "max_num_batched_tokens", "num_blocks"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 1, " or None")
        _integer("max_num_seqs", self.max_num_seqs, 1)
        _integer("lookahead_tokens", self.lookahead_tokens, 0)
        if self.seed is not None:
            _integer("seed", self.seed, None, " or None")
        for name in ("chunked_prefill", "stop_preempted_request", "disable_log_stats"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is {getattr(self, name)!r}; allowed: True or False")
        share = self.gpu_memory_utilization
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise UsageError(
                f"gpu_memory_utilization is {share!r}; allowed: a number in (0, 1], the share of "
                "the device's memory"
            )
        if self.tokens_per_block not in (-1, BLOCK_TOKENS):
            raise UsageError(
                f"tokens_per_block is {self.tokens_per_block!r}; allowed: {BLOCK_TOKENS}, or -1 "
                "for the same"
            )
        rows = self.max_num_batched_tokens
        if rows is not None and self.lookahead_tokens > rows:
            raise UsageError(
                f"lookahead_tokens is {self.lookahead_tokens} and max_num_batched_tokens {rows}; a "
                "piece of a prompt cannot be longer than a step: lower the one or raise the other"
            )
        self._check_not_built()

    def _check_not_built(self) -> None:
        """NotBuiltYetError for a value that asks for a feature which is not built."""
        for name, (feature, nothing) in _PARALLEL.items():
            value = getattr(self, name)
            _integer(name, value, min(nothing))
            if value not in nothing:
                raise NotBuiltYetError(
                    f"{name} is {value}: {feature} is not built yet; use {nothing[0]}"
                )
        _integer("steps_in_flight", self.steps_in_flight, 0)
        if self.steps_in_flight:
            raise NotBuiltYetError(
                f"steps_in_flight is {self.steps_in_flight}: a step that runs while the next one "
                "is planned is not built yet; use 0"
            )
        _choice("engine_type", self.engine_type, ("normal", "prompt", "completion"))
        if self.engine_type != "normal":
            raise NotBuiltYetError(
                f"engine_type is {self.engine_type!r}: prefill and decode in separate engines are "
                "not built yet; use 'normal'"
            )
        _choice("load_format", self.load_format, ("auto", "dummy"))
        if self.load_format != "auto":
            raise NotBuiltYetError(
                "load_format is 'dummy': random weights instead of a checkpoint's are not built "
                "yet; use 'auto' with a generated checkpoint"
            )

    @classmethod
    def from_names(cls, options: dict[str, Any]) -> EngineOptions:
        """Options by name. UsageError for an unknown name, with what to use instead."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name in known:
                continue
            near = difflib.get_close_matches(name, known, n=1)
            hint = _HINTS.get(name) or (f"did you mean {near[0]}?" if near else "")
            raise UsageError(
                f"{name!r} is no option of the engine"
                + (f"; {hint}" if hint else f"; allowed: {', '.join(known)}")
            )
        return cls(**options)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        return COMPUTE_DTYPES[self.compute]

    def numerics_for(self, config: ModelConfig) -> Numerics:
        """The numeric mode that a checkpoint runs in under these options."""
        if self.numerics != "auto":
            return Numerics(self.numerics)
        quantisation = config.quantization
        dynamic = quantisation is not None and quantisation.activation_scheme == "dynamic"
        return Numerics.INFER if dynamic else Numerics.REF

    def model_len(self, config: ModelConfig) -> int:
        """The most tokens of a sequence, by the options and the model, whatever the memory holds.

        UsageError for a max_model_len beyond the positions of the model.
        """
        limit = config.text.max_position_embeddings
        if self.max_model_len is not None and self.max_model_len > limit:
            raise UsageError(
                f"max_model_len is {self.max_model_len}; allowed: 1 to {limit} "
                "(max_position_embeddings of this checkpoint)"
            )
        return self.max_model_len or limit

    def batched_tokens(self, config: ModelConfig) -> int:
        """The most rows of a step."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        rows = max(DEFAULT_BATCHED_TOKENS, self.max_num_seqs, self.lookahead_tokens)
        return rows if self.chunked_prefill else max(rows, self.model_len(config))


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _integer(name: str, value: object, least: int | None, other: str = "") -> None:
    bound = "" if least is None else f" of at least {least}"
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or (least is not None and value < least):  # type: ignore[operator]
        raise UsageError(f"{name} is {value!r}; allowed: an integer{bound}{other}")
