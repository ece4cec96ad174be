"""`Engine`: a checkpoint on a backend, and the loop that turns prompts into tokens.

`generate` runs one request through an `EngineCore`; `extend`, `step` and `launch` run given rows of
given sequences, for checks: reserve cache, build the batch, run the model, free what no later row
sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.backend import (
    Backend,
    Numerics,
    accumulation_dtype,
)
from deepinfer.backend.registry import REFERENCE, Selected, host_reference, reference_for
from deepinfer.backend.resolution import Operators, resolve
from deepinfer.cache import CacheLayout, CacheManager, CachePools, OutOfBlocksError, SequenceCache
from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.progress import progress_bar
from deepinfer.config import ModelConfig
from deepinfer.engine.batching import Chunk, NgramHistory, Prompt, build_batch
from deepinfer.engine.core import EngineCore
from deepinfer.engine.observe.stats import EngineStats
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.request import FinishReason
from deepinfer.engine.sampler import SamplingRules
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.engine.scheduler import UNBOUNDED, Limits
from deepinfer.engine.sizing import Sizes, plan_sizes
from deepinfer.errors import (
    PromptTooLongError,
    RequestError,
    UnsupportedOperatorError,
    UsageError,
)
from deepinfer.model import Backbone, PackingPlan, WeightLoader, model_calls, plan_packing
from deepinfer.model.calls import CallLimits
from deepinfer.settings.settings import Settings
from deepinfer.text import Tokenizer, compressed_token_map


class Generated(NamedTuple):
    """One generated token. finish_reason: "" while running, then "stop" or "length"."""

    token_id: int
    finish_reason: str


@dataclass
class Timing:
    """Rows and seconds of prompt and output steps since the engine started."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    def add(self, stats: EngineStats) -> None:
        """Add what an engine core has counted."""
        self.prefill_tokens += stats.prefill_tokens
        self.prefill_seconds += stats.prefill_seconds
        self.decode_tokens += stats.decode_tokens
        self.decode_seconds += stats.decode_seconds

    def rates(self) -> tuple[float, float]:
        """(prefill, decode) tokens per second; 0 where nothing ran."""
        prefill = self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0
        decode = self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0
        return prefill, decode


class Engine:
    """The text model of one checkpoint on one backend."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        selected: Selected,
        backend: Backend,
        operators: Operators,
        backbone: Backbone,
        options: EngineOptions,
        layout: CacheLayout,
        sizes: Sizes,
        tokenizer: Tokenizer,
        history: NgramHistory | None,
        settings: Settings,
        packing: PackingPlan,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.selected = selected
        self.backend = backend
        self.operators = operators
        self.backbone = backbone
        self.options = options
        self.tokenizer = tokenizer
        self.history = history
        self.timing = Timing()
        self.layout = layout
        self.sizes = sizes
        self.packing = packing
        self.settings = settings
        self.rules = SamplingRules.from_settings(settings, self.config.text.vocab_size)
        self.limits = _limits(options, sizes, settings, self.config)
        self.cache = CacheManager(
            layout,
            num_blocks=sizes.num_blocks,
            num_pages=sizes.num_pages,
            num_slots=sizes.num_slots,
            max_tokens=sizes.max_model_len,
            max_rows=min(sizes.max_num_batched_tokens, sizes.max_model_len),
        )
        self.pools: CachePools = self.cache.pools(
            operators.device, accumulation_dtype(options.dtype)
        )

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        selected: Selected,
        options: EngineOptions,
        *,
        strict: bool = False,
        progress: bool = False,
        layout: CacheLayout | None = None,
        settings: Settings | None = None,
    ) -> Engine:
        """Ask the backend for every call of the model, then read the weights.

        DeviceMemoryError where the device has too little memory for them, before any is read.
        strict: a fallback is an error. layout: cache geometry other than the canonical one.
        settings: the environment's by default. UnsupportedOperatorError for a cache_dtype that the
        backend does not have.
        """
        config = checkpoint.config
        if settings is None:
            settings = Settings.from_environment(backends=(selected.spec,))
        tokenizer = Tokenizer.from_directory(checkpoint.directory, config)
        numerics = options.numerics_for(config)
        _check_cache(options, selected)
        limits = call_limits(options, config)
        calls = model_calls(config, numerics, options.compute, limits, options.cache_dtype)
        backend = selected.create()
        operators = resolve(
            selected.spec.name,
            backend,
            reference_for(selected, backend),
            calls,
            strict,
            host_reference,
        )
        resident_tables = settings.flag("DEEPINFER_ENGRAM_FORCE_GPU_STORAGE")
        packing = plan_packing(checkpoint, operators, resident_tables)
        packing.check(selected.spec.name, operators.memory())
        history, pad = None, 0
        if config.text.engram_layer_ids:
            text = config.text
            token_map = compressed_token_map(
                tokenizer, text.vocab_size, text.engram_compressed_vocab_size
            ).astype(np.int64)
            history = NgramHistory(token_map, text.engram_max_ngram_size)
            pad = int(token_map[_pad_token(settings, config)])
        with progress_bar("layers", config.text.num_hidden_layers, enabled=progress) as advance:
            weights = WeightLoader(checkpoint, operators, pad, resident_tables).load(advance)
        backbone = Backbone(config.text, weights, operators, numerics, options.dtype)
        layout = replace(layout or CacheLayout(config.text), cache_dtype=options.cache_dtype)
        sizes = plan_sizes(
            options,
            config,
            layout,
            operators.memory(),
            slots_ratio=settings.number("DEEPINFER_NUM_STATE_SLOTS_RATIO"),
            element_bytes=accumulation_dtype(options.dtype).itemsize,
        )
        return cls(
            checkpoint,
            selected,
            backend,
            operators,
            backbone,
            options,
            layout,
            sizes,
            tokenizer,
            history,
            settings,
            packing,
        )

    @property
    def numerics(self) -> Numerics:
        """The numeric mode that runs."""
        return self.backbone.numerics

    def validate(self, prompt: Prompt) -> npt.NDArray[np.int64]:
        """The prompt as an array; RequestError for an empty, foreign or too long one."""
        vocabulary = self.config.text.vocab_size
        if len(prompt) == 0:
            raise RequestError("the prompt has no tokens; give at least one")
        tokens = _integers(prompt)
        wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
        if wrong.size:
            raise RequestError(
                f"prompt token id {int(tokens[wrong[0]])} at place {int(wrong[0])} is outside the "
                f"vocabulary 0..{vocabulary - 1}"
            )
        limit = self.sizes.max_model_len
        if len(tokens) + 1 > limit:
            raise PromptTooLongError(
                f"the prompt has {len(tokens)} tokens and max_model_len is {limit}, which must "
                "also hold one output token; shorten the prompt or raise max_model_len"
            )
        return tokens.astype(np.int64)

    def generate(self, prompt: Prompt, params: SamplingParams) -> Iterator[Generated]:
        """Tokens of one request as they are drawn; the last one carries the finish reason.

        OutOfBlocksError when memory is short although nothing else of this call runs;
        RequestError when there is nothing to draw from; what a step raised otherwise.
        """
        if params.n != 1:
            raise RequestError(f"n is {params.n} and this call gives one text; allowed: 1")
        if params.wants_logprobs or params.prompt_logprobs:
            raise RequestError(
                "log-probabilities are asked for and this call returns tokens only; use "
                "deepinfer.engine.core.EngineCore, or leave logprobs, top_logprobs and "
                "prompt_logprobs out"
            )
        if params.stop:
            raise RequestError(
                f"stop is {list(params.stop)} and this call has no text; use deepinfer.LLM, or "
                "stop_token_ids"
            )
        core = EngineCore(self)
        request = core.add(prompt, params)
        sequence, sent = request.sequences[0], 0
        try:
            while sent < sequence.output_length or not sequence.finished:
                if sent == sequence.output_length:
                    core.step()
                    continue
                last = sequence.output_length == sent + 1
                reason = sequence.finish_reason if last else ""
                yield Generated(int(sequence.output[sent]), reason)
                sent += 1
            if sequence.exception is not None:
                raise sequence.exception
            if sequence.finish_reason == FinishReason.NO_RESOURCES:
                raise OutOfBlocksError(sequence.error)
            if sequence.error:
                raise RequestError(sequence.error)
        finally:
            core.abort(request.request_id)
            self.timing.add(core.stats())

    def extend(
        self,
        cache: SequenceCache,
        tokens: npt.NDArray[np.int64],
        *,
        all_rows: bool = False,
        chunk_rows: int | None = None,
    ) -> Tensor:
        """Compute the tokens that the cache does not hold yet; logits of the last one [1, V].

        all_rows: logits of every new token [T, V] instead. chunk_rows: rows per step, by default
        max_num_batched_tokens.
        """
        if cache.length >= len(tokens):
            raise ValueError(
                f"the cache holds {cache.length} tokens: none of {len(tokens)} is left to compute"
            )
        rows = chunk_rows or self.sizes.max_num_batched_tokens
        kept: list[Tensor] = []
        while cache.length < len(tokens):
            stop = min(len(tokens), cache.length + rows)
            logits = self.step([Chunk(tokens, cache.length, stop, cache)], all_rows)
            kept = [*kept, logits] if all_rows else [logits]
        return torch.cat(kept)

    def step(self, chunks: Sequence[Chunk], all_rows: bool = False) -> Tensor:
        """One step over chunks of several sequences: logits of their last (or all) rows."""
        logits = self.launch(chunks, all_rows)
        for chunk in chunks:
            self.cache.commit(chunk.cache, chunk.stop)
        return logits

    def launch(self, chunks: Sequence[Chunk], all_rows: bool = False) -> Tensor:
        """`step` without its commit: no row is final yet.

        Rows that `self.cache.commit` is not told of are computed again by the next launch, with
        the same or other tokens; the layout's `backtrack` bounds how many they may be.
        """
        for chunk in chunks:
            if chunk.start != chunk.cache.length:
                raise ValueError(
                    f"a chunk starts at {chunk.start} and its sequence has {chunk.cache.length} "
                    "committed tokens; rows follow what is committed"
                )
            self.cache.reserve(chunk.cache, chunk.stop)
        copies = self.cache.writable(
            np.array([chunk.cache.slot for chunk in chunks]),
            np.array([chunk.stop for chunk in chunks]),
        )
        if copies:
            self.pools.copy(self.operators, copies)
        batch = build_batch(chunks, self.operators, self.history)
        if all_rows:
            rows = torch.arange(batch.num_rows, device=batch.token_ids.device)
        else:
            rows = batch.query_start[1:] - 1
        return self.backbone.forward(batch, self.pools, rows)


def call_limits(options: EngineOptions, config: ModelConfig) -> CallLimits:
    """Bounds of the calls that an engine with these options makes."""
    return CallLimits(
        options.batched_tokens(config), options.max_num_seqs, options.model_len(config)
    )


def _check_cache(options: EngineOptions, selected: Selected) -> None:
    """Only the reference has entries that are not the published ones."""
    if options.cache_dtype != "fp4" and selected.spec.name != REFERENCE:
        raise UnsupportedOperatorError(
            f"cache_dtype is {options.cache_dtype!r} and the backend {selected.spec.name!r}, which "
            f"keeps main and index entries in FP4 only; leave cache_dtype out, or use the backend "
            f"{REFERENCE!r}"
        )


def _limits(
    options: EngineOptions, sizes: Sizes, settings: Settings, config: ModelConfig
) -> Limits:
    """Bounds of a step and rules of admission."""
    most = settings.optional_integer("DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K")
    ratios = [ratio for ratio in config.text.compress_ratios if ratio]
    return Limits(
        max_num_seqs=min(options.max_num_seqs, sizes.num_slots),
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        chunked_prefill=options.chunked_prefill,
        stop_preempted_request=options.stop_preempted_request,
        max_sum_length=UNBOUNDED if most is None else most,
        lookahead_tokens=options.lookahead_tokens,
        score_bytes=settings.integer("DEEPINFER_INDEX_ATTN_MEMORY_LIMIT"),
        score_bytes_per_token=accumulation_dtype(options.dtype).itemsize / min(ratios)
        if ratios
        else 0.0,
    )


def _pad_token(settings: Settings, config: ModelConfig) -> int:
    """The raw id in front of a sequence in Engram's n-grams."""
    token = settings.optional_integer("DEEPINFER_ENGRAM_PAD_TOKEN")
    if token is None:
        return config.text.engram_pad_token_id
    if token >= config.text.vocab_size:
        raise UsageError(
            f"DEEPINFER_ENGRAM_PAD_TOKEN is {token}; allowed: 0 to {config.text.vocab_size - 1}, "
            "the vocabulary of this checkpoint"
        )
    return token


def _integers(prompt: Prompt) -> npt.NDArray[Any]:
    """A prompt as an array of one dimension of integers of any size; RequestError otherwise."""
    with contextlib.suppress(ValueError):  # numpy's answer to rows of several lengths
        tokens = np.asarray(prompt)
        if tokens.ndim == 1 and tokens.dtype.kind in "iu":
            return tokens
    for place, token in enumerate(prompt):
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise RequestError(
                f"prompt token id {token!r} at place {place} is no integer; a prompt is a list of "
                "integers"
            )
    return np.array(prompt, dtype=object)  # integers wider than 64 bits
