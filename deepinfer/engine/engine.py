"""`Engine`: a checkpoint on a backend, and the loop that turns prompts into tokens.

One sequence runs at a time here: plan (reserve cache, build the batch), launch (the model), commit
(free what no later row sees). Scheduling of many sequences comes with its own module.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.backend import (
    Backend,
    Numerics,
    Purpose,
    SamplingParameters,
    accumulation_dtype,
)
from deepinfer.backend.registry import Selected, reference_for
from deepinfer.backend.resolution import Operators, resolve
from deepinfer.cache import CacheLayout, CacheManager, CachePools, SequenceCache
from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.progress import progress_bar
from deepinfer.engine.batching import Chunk, NgramHistory, build_batch
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.errors import RequestError
from deepinfer.model import Backbone, WeightLoader, model_calls
from deepinfer.model.calls import CallLimits
from deepinfer.text import Tokenizer, compressed_token_map

Prompt = Sequence[int] | npt.NDArray[np.integer[Any]]


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
        tokenizer: Tokenizer,
        history: NgramHistory | None,
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
        rows = min(options.max_num_batched_tokens, options.max_model_len)
        self.cache = CacheManager(
            layout,
            num_blocks=options.max_num_seqs * layout.blocks_for(options.max_model_len),
            num_pages=options.max_num_seqs * layout.window_pages_for(rows),
            num_slots=options.max_num_seqs,
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
    ) -> Engine:
        """Ask the backend for every call of the model, then read the weights.

        strict: a fallback is an error. layout: cache geometry other than the canonical one.
        """
        config = checkpoint.config
        tokenizer = Tokenizer.from_directory(checkpoint.directory, config)
        numerics = options.numerics_for(config)
        limits = CallLimits(
            options.max_num_batched_tokens, options.max_num_seqs, options.max_model_len
        )
        calls = model_calls(config, numerics, options.compute, limits)
        backend = selected.create()
        operators = resolve(
            selected.spec.name, backend, reference_for(selected, backend), calls, strict
        )
        history, pad = None, 0
        if config.text.engram_layer_ids:
            text = config.text
            token_map = compressed_token_map(
                tokenizer, text.vocab_size, text.engram_compressed_vocab_size
            ).astype(np.int64)
            history = NgramHistory(token_map, text.engram_max_ngram_size)
            pad = int(token_map[text.engram_pad_token_id])
        with progress_bar("layers", config.text.num_hidden_layers, enabled=progress) as advance:
            weights = WeightLoader(checkpoint, operators, pad).load(advance)
        backbone = Backbone(config.text, weights, operators, numerics, options.dtype)
        return cls(
            checkpoint,
            selected,
            backend,
            operators,
            backbone,
            options,
            layout or CacheLayout(config.text),
            tokenizer,
            history,
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
        limit = self.options.max_model_len
        if len(tokens) + 1 > limit:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens and max_model_len is {limit}, which must "
                "also hold one output token; shorten the prompt or raise max_model_len"
            )
        return tokens.astype(np.int64)

    def generate(self, prompt: Prompt, params: SamplingParams) -> Iterator[Generated]:
        """Tokens of one request as they are drawn; the last one carries the finish reason."""
        ids = self.validate(prompt)
        length = len(ids)
        tokens = np.empty(min(self.options.max_model_len, length + params.max_tokens), np.int64)
        tokens[:length] = ids
        seed = secrets.randbits(64) if params.seed is None else params.seed
        cache = self.cache.open()
        try:
            started = time.perf_counter()
            token = self.draw(self.extend(cache, tokens[:length]), params, seed, length)
            self.timing.prefill_tokens += length
            self.timing.prefill_seconds += time.perf_counter() - started
            while True:
                reason = self._finish_reason(token, length + 1 - len(ids), len(ids), params)
                yield Generated(token, reason)
                if reason:
                    return
                started = time.perf_counter()
                tokens[length] = token
                length += 1
                token = self.draw(self.extend(cache, tokens[:length]), params, seed, length)
                self.timing.decode_tokens += 1
                self.timing.decode_seconds += time.perf_counter() - started
        finally:
            self.cache.close(cache)

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
        rows = chunk_rows or self.options.max_num_batched_tokens
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
        batch = build_batch(chunks, self.operators, self.history)
        if all_rows:
            rows = torch.arange(batch.num_rows, device=batch.token_ids.device)
        else:
            rows = batch.query_start[1:] - 1
        return self.backbone.forward(batch, self.pools, rows)

    def draw(self, logits: Tensor, params: SamplingParams, seed: int, position: int) -> int:
        """Choose one token from logits [1, V] for absolute `position`."""
        tensor = self.operators.tensor
        parameters = SamplingParameters(
            temperature=tensor([params.temperature], torch.float32),
            top_p=tensor([params.top_p], torch.float32),
            top_k=tensor([max(params.top_k, 0)], torch.int64),
            min_p=tensor([params.min_p], torch.float32),
        )
        logprobs = self.operators.process(logits, parameters)
        bits = int(seed) & (2**64 - 1)
        signed = bits - 2**64 if bits >= 2**63 else bits
        drawn = self.operators.sample(
            logprobs,
            tensor([signed], torch.int64),
            tensor([position], torch.int64),
            Purpose.SAMPLE,
        )
        token = int(drawn[0])
        if token < 0:
            raise RequestError(
                "the model returned NaN, +inf or no finite logit for this request; check the "
                "checkpoint, or use compute fp32 to find where it starts"
            )
        return token

    def _finish_reason(
        self, token: int, count: int, prompt_length: int, params: SamplingParams
    ) -> str:
        if token == self.config.eos_token_id and not params.ignore_eos:
            return "stop"
        if count >= params.max_tokens or prompt_length + count >= self.options.max_model_len:
            return "length"
        return ""


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
