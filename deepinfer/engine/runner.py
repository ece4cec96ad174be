"""`ModelRunner`: a checkpoint on a backend, with the cache memory of its sequences.

It builds the batch of a step, runs the layers over it and computes logits of its rows. Which rows a
step has is decided by the caller: an `Engine`, or several of them that take turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deepinfer.arrays import Int64Array
from deepinfer.backend import Backend, Batch, Numerics, accumulation_dtype
from deepinfer.backend.registry import REFERENCE, Selected, host_reference, reference_for
from deepinfer.backend.resolution import Operators, resolve
from deepinfer.cache import CacheLayout, CacheManager, CachePools
from deepinfer.cache.copies import Copies
from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.progress import progress_bar
from deepinfer.config import ModelConfig
from deepinfer.engine.batch import BatchBuilder, NgramHistory, Rows
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.sequence_table import SequenceTable
from deepinfer.engine.sizing import Sizes, plan_sizes
from deepinfer.errors import UnsupportedOperatorError, UsageError
from deepinfer.model import Backbone, PackingPlan, WeightLoader, model_calls, plan_packing
from deepinfer.model.backbone import Residual
from deepinfer.model.calls import CallLimits
from deepinfer.settings.settings import Settings
from deepinfer.text import Tokenizer, compressed_token_map


@dataclass(eq=False)
class ModelRunner:
    """The text model of one checkpoint on one backend, and the memory that its rows use.

    history: None for a model without Engram. cache: which sequence holds which cache memory. pools:
    that memory.
    """

    checkpoint: Checkpoint
    selected: Selected
    backend: Backend
    operators: Operators
    backbone: Backbone
    options: EngineOptions
    layout: CacheLayout
    sizes: Sizes
    tokenizer: Tokenizer
    history: NgramHistory | None
    settings: Settings
    packing: PackingPlan

    def __post_init__(self) -> None:
        sizes = self.sizes
        self.cache = CacheManager(
            self.layout,
            num_blocks=sizes.num_blocks,
            num_pages=sizes.num_pages,
            num_slots=sizes.num_slots,
            max_tokens=sizes.max_model_len,
            max_rows=min(sizes.max_num_batched_tokens, sizes.max_model_len),
        )
        self.pools: CachePools = self.cache.pools(
            self.operators.device, accumulation_dtype(self.options.dtype)
        )
        self._batches = BatchBuilder(self.operators, self.history)

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
    ) -> ModelRunner:
        """Ask the backend about every call of the model, then read the weights.

        strict: a call that the backend does not run itself is an error. layout: a cache geometry
        other than the canonical one. settings: by default those of the environment.

        DeviceMemoryError, before any weight is read, where the device has too little memory for
        them. UnsupportedOperatorError for a cache_dtype that the backend does not have.
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
            checkpoint=checkpoint,
            selected=selected,
            backend=backend,
            operators=operators,
            backbone=backbone,
            options=options,
            layout=layout,
            sizes=sizes,
            tokenizer=tokenizer,
            history=history,
            settings=settings,
            packing=packing,
        )

    @property
    def config(self) -> ModelConfig:
        """The configuration of the checkpoint."""
        return self.checkpoint.config

    @property
    def numerics(self) -> Numerics:
        """The numeric mode in which the model runs."""
        return self.backbone.numerics

    def new_table(self) -> SequenceTable:
        """An empty table for the sequences of one engine."""
        return SequenceTable(
            len(self.cache.length), self.sizes.max_model_len, self.config.eos_token_id
        )

    def build_batch(self, table: SequenceTable, rows: Rows) -> Batch:
        """The batch of a step, for whose rows the cache has reserved memory."""
        return self._batches.build_batch(table, rows, self.cache)

    def copy(self, copies: Copies) -> None:
        """Make the copies of cache memory that must be done before a step runs."""
        if copies:
            self.pools.copy(self.operators, copies)

    def run(self, batch: Batch) -> Residual:
        """Run all layers over the rows of a batch and write their entries to the cache."""
        return self.backbone.run(batch, self.pools)

    def head(self, residual: Residual, rows: Int64Array | None) -> Tensor:
        """Logits [M, V] of `rows` [M] of the batch that was run; None: of all rows."""
        chosen = None if rows is None else self.operators.tensor(rows, torch.int64)
        return self.backbone.head(residual, chosen)


def call_limits(options: EngineOptions, config: ModelConfig) -> CallLimits:
    """Bounds of what varies between the calls of an engine with these options."""
    return CallLimits(
        options.batched_tokens(config), options.max_num_seqs, options.model_len(config)
    )


def _check_cache(options: EngineOptions, selected: Selected) -> None:
    """UnsupportedOperatorError for entries of another format than the published one.

    Only the reference backend has others.
    """
    if options.cache_dtype != "fp4" and selected.spec.name != REFERENCE:
        raise UnsupportedOperatorError(
            f"cache_dtype is {options.cache_dtype!r} and the backend {selected.spec.name!r}, which "
            f"keeps main and index entries in FP4 only; leave cache_dtype out, or use the backend "
            f"{REFERENCE!r}"
        )


def _pad_token(settings: Settings, config: ModelConfig) -> int:
    """The token id that stands before the start of a sequence in Engram's n-grams."""
    token = settings.optional_integer("DEEPINFER_ENGRAM_PAD_TOKEN")
    if token is None:
        return config.text.engram_pad_token_id
    if token >= config.text.vocab_size:
        raise UsageError(
            f"DEEPINFER_ENGRAM_PAD_TOKEN is {token}; allowed: 0 to {config.text.vocab_size - 1}, "
            "the vocabulary of this checkpoint"
        )
    return token
