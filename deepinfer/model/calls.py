"""The operator calls that a model makes, traced from its configuration alone.

The backend is asked about them once, before any weight is read, and `deepinfer inspect --calls`
prints them. Calls inside the default body of a step have the name of the step: they are made only
where no backend runs the step as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer.backend import (
    Batch,
    CallSpec,
    Numerics,
    SamplingParameters,
    Table,
    accumulation_dtype,
)
from deepinfer.backend.sampling import Purpose
from deepinfer.backend.shapes import HOST, empty
from deepinfer.backend.trace import Tracer
from deepinfer.cache import CacheLayout, CachePools
from deepinfer.cache.copies import Copies
from deepinfer.config import LayerPlan, ModelConfig, TextConfig
from deepinfer.formats.dtypes import COMPUTE_DTYPES
from deepinfer.model.announced import AnnouncedCheckpoint
from deepinfer.model.backbone import Backbone, Selections
from deepinfer.model.weights import WeightLoader


@dataclass(frozen=True)
class CallLimits:
    """Upper bounds of what varies at run time: rows, sequences per step, tokens per sequence."""

    max_rows: int
    max_sequences: int
    max_length: int

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The ranges of calls, as a `Tracer` takes them."""
        return {
            "rows": (1, self.max_rows),
            "sequences": (1, min(self.max_rows, self.max_sequences)),
            "length": (1, self.max_length),
        }


def model_calls(
    config: ModelConfig,
    numerics: Numerics,
    dtype: str,
    limits: CallLimits,
    cache_dtype: str = "fp4",
) -> list[CallSpec]:
    """Every distinct call of the text model, in order of first use.

    The backbone runs over a batch without rows, with one layer of each kind and operators that
    compute shapes only. Then the calls are made that the engine makes outside of the backbone.

    dtype: "bf16", "fp32" or "fp64". cache_dtype: "fp4" or "bf16". With "bf16", calls on main and
    index entries have the fact `cache`, and calls of `store` the name of another format. A fact
    weight="bf16" means an unquantised matrix, which may be stored in float32 too.
    """
    text, compute = config.text, COMPUTE_DTYPES[dtype]
    tracer = Tracer(limits.ranges, {"dtype": dtype})
    loader = WeightLoader(AnnouncedCheckpoint(config), tracer, pad_id=0)
    weights = loader.load(indices=[plan.index for plan in layer_kinds(text)])
    backbone = Backbone(text, weights, tracer, numerics, compute)
    layout = CacheLayout(text, cache_dtype=cache_dtype)
    pools = CachePools(layout, 1, 1, 1, HOST, accumulation_dtype(compute))
    batch = _no_rows(text, limits.max_length)
    residual, selections = backbone.begin(batch), Selections()
    for layer in weights.layers:
        tracer.inherited["ratio"] = layer.plan.ratio
        residual = backbone.layer(layer, residual, selections, batch, pools)
    _around(tracer, backbone.head(residual, batch.sequence), pools)
    return tracer.calls


def layer_kinds(text: TextConfig) -> Iterator[LayerPlan]:
    """The first layer of each kind, in order. All layers of a kind make the same calls.

    Each Engram layer is a kind of its own, because their tables differ in size.
    """
    seen = set()
    for plan in text.layers:
        kind = replace(
            plan, index=plan.index if plan.engram else -1, kv_source=None, index_source=None
        )
        if kind not in seen:
            seen.add(kind)
            yield plan


def _no_rows(text: TextConfig, max_length: int) -> Batch:
    """A batch without rows, for contexts of up to `max_length` tokens."""
    none = _integers(0)
    table = Table(_integers(0, 1), none)
    return Batch(
        token_ids=none,
        positions=none,
        sequence=none,
        query_start=_integers(1),
        context_lengths=none,
        slots=none,
        image_mask=empty((0,), torch.bool),
        context=table,
        window=table,
        max_context=max_length,
        history=_integers(0, text.engram_max_ngram_size),
    )


def _around(tracer: Tracer, logits: Tensor, pools: CachePools) -> None:
    """Make the calls of the engine outside of the backbone: sampling, and copies of blocks.

    A block that several sequences share is copied before one of them writes into it.
    """
    rows, values = _integers(0), empty((0,), torch.float32)
    logprobs = tracer.process(logits, SamplingParameters(values, values, rows, values))
    tracer.sample(logprobs, rows, rows, Purpose.SAMPLE)
    tracer.top_logprobs(logprobs, 1)
    pools.copy(tracer, Copies([(0, 0)], [], []))


def _integers(*shape: int) -> Tensor:
    return empty(shape, torch.int64)
