"""`deepinfer golden DIR`: run everything that a golden directory holds, and say so per item."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from deepinfer.backend.registry import Selected
from deepinfer.conformance.golden.comparison import attempt
from deepinfer.conformance.golden.data import (
    COMPUTES,
    GREEDY,
    LATER,
    LAYERS,
    LOGITS,
    OPERATORS,
    GoldenData,
    GoldenModel,
    Tensors,
)
from deepinfer.conformance.golden.engram import TINY_MODEL
from deepinfer.conformance.golden.greedy import check_greedy
from deepinfer.conformance.golden.layers import check_layers
from deepinfer.conformance.golden.logits import check_logits
from deepinfer.conformance.golden.operators import check_operators
from deepinfer.conformance.golden.report import GoldenReport, Item
from deepinfer.engine import Engine, EngineOptions, open_engine
from deepinfer.errors import UsageError
from deepinfer.settings.settings import Settings

STEP_VARIABLES = ("DEEPINFER_INDEX_ATTN_MEMORY_LIMIT", "DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K")
"""Variables that bound the rows or the tokens of a step."""

OnEngine = Callable[[Engine], AbstractContextManager[None]]


def run_golden(
    directory: str,
    selected: Selected,
    computes: tuple[str, ...] = COMPUTES,
    *,
    require_all: bool = False,
    strict: bool = False,
    on_item: Callable[[Item], None] | None = None,
    on_engine: OnEngine | None = None,
) -> GoldenReport:
    """Compare a backend with all golden data of a directory, always in REF numerics.

    computes: "fp32" and "bf16", or one of them. strict: a model that needs a fallback fails.
    on_item is called as each comparison ends; the context that on_engine gives for an engine is
    entered while that runs. Raises
    UsageError for a directory that cannot be read; whatever goes wrong later is a failed item.
    """
    unknown = [compute for compute in computes if compute not in COMPUTES]
    if unknown:
        raise UsageError(f"compute is {unknown[0]!r}; allowed: {', '.join(COMPUTES)}")
    data = GoldenData.open(directory)
    report = GoldenReport(require_all=require_all)
    for item in _items(data, selected, computes, strict, on_engine):
        report.items.append(item)
        if on_item is not None:
            on_item(item)
    return report


def _items(
    data: GoldenData,
    selected: Selected,
    computes: tuple[str, ...],
    strict: bool,
    on_engine: OnEngine | None,
) -> Iterator[Item]:
    if data.vectors is not None:
        check = functools.partial(check_operators, data, data.vectors, selected, computes)
        yield from attempt("ops", "", check)
        yield from _leftovers(data, data.vectors, computes)
    for model in data.models:
        for compute in computes:
            check = functools.partial(_check_model, model, selected, compute, strict, on_engine)
            yield from attempt(model.name, compute, check)
        for name, tensors in model.files.items():
            if name in LATER.values():
                yield from _later(model, name, tensors)
            elif name not in LAYERS.values() or name in (LAYERS[c] for c in computes):
                yield from _leftovers(data, tensors, computes)
    for tensors in data.strays:
        yield Item.uncovered(
            data.label(tensors), "text", f"{len(tensors.keys)} tensors of no known file or model"
        )


def _check_model(
    model: GoldenModel,
    selected: Selected,
    compute: str,
    strict: bool,
    on_engine: OnEngine | None,
) -> Iterator[Item]:
    logits, greedy = model.tensors(LOGITS), model.tensors(GREEDY)
    layers = model.tensors(LAYERS[compute])
    if logits is None and greedy is None and layers is None:
        return
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(open_golden_engine(model, selected, compute, strict))
        if on_engine is not None:
            stack.enter_context(on_engine(engine))
        for tensors in model.files.values():
            tensors.device = engine.runner.operators.device
        if layers is not None:
            yield from check_layers(engine, model, layers, compute)
        if logits is not None:
            yield from check_logits(engine, model, logits, compute)
        if greedy is not None:
            yield from check_greedy(engine, model, greedy, logits, compute)


def open_golden_engine(
    model: GoldenModel, selected: Selected, compute: str, strict: bool = False
) -> Engine:
    """The model's checkpoint in REF numerics, sized for its longest golden prompt and batch.

    Variables of the environment that cut a prompt into several steps have no effect: a layer is
    compared over all rows of a prompt.
    """
    sizes = _sizes(model)
    options = EngineOptions(
        numerics="ref",
        compute=compute,
        max_model_len=sizes.tokens,
        max_num_batched_tokens=sizes.rows,
        max_num_seqs=sizes.sequences,
    )
    environ = {name: value for name, value in os.environ.items() if name not in STEP_VARIABLES}
    settings = Settings.from_environment(environ, backends=(selected.spec,))
    return open_engine(
        model.checkpoint, selected, options, strict=strict, allow_null=True, settings=settings
    )


class _Sizes(NamedTuple):
    """Bounds of the tokens of a sequence, continuation included, of rows and sequences at once."""

    tokens: int
    rows: int
    sequences: int


def _sizes(model: GoldenModel) -> _Sizes:
    logits, greedy = model.tensors(LOGITS), model.tensors(GREEDY)
    longest, further, sequences, batch = 0, 0, 1, 0
    if logits is not None:
        prompts = [f"{prompt}.ids" for prompt in logits.prompts("ids") if prompt != "batch"]
        longest = max((logits.rows(key) for key in prompts), default=0)
        sequences = max(1, len(prompts))
        if "batch.ids" in logits.keys:
            rows, width = logits.shape("batch.ids")
            longest, sequences, batch = max(longest, width), max(sequences, rows), rows * width
    if greedy is not None:
        keys = [f"{p}.tokens.{c}" for c in COMPUTES for p in greedy.prompts(f"tokens.{c}")]
        further = max((greedy.rows(key) for key in keys), default=0)
    tokens = 1 + longest + further
    return _Sizes(tokens, max(tokens, batch, sequences), sequences)


def _leftovers(data: GoldenData, tensors: Tensors, computes: tuple[str, ...]) -> Iterator[Item]:
    """Data that nothing compared, unless it belongs to a precision that was not asked for."""
    name = data.label(tensors).removesuffix(".safetensors")
    if not tensors.keys:
        yield Item.uncovered(name, "text", "the file holds no tensors")
    others = {compute for compute in COMPUTES if compute not in computes}
    for key in tensors.unused():
        if others.isdisjoint(key.split(".")):
            yield Item.uncovered(f"{name}/{key}", "text", _why(data, tensors, key))


def _why(data: GoldenData, tensors: Tensors, key: str) -> str:
    vectors = tensors.path.name == OPERATORS
    if vectors and key.startswith("engram.tiny.") and data.model(TINY_MODEL) is None:
        return f"needs the checkpoint of {TINY_MODEL}, which is not there"
    return "no check reads it"


def _later(model: GoldenModel, file: str, tensors: Tensors) -> Iterator[Item]:
    """One uncovered item per prompt or case of a component that is not built."""
    component = next(one for one, name in LATER.items() if name == file)
    cases = [key.split(".")[0] for key in tensors.keys]
    for case in sorted(set(cases)):
        note = f"{component} is not built yet: {cases.count(case)} tensors"
        yield Item.uncovered(f"{model.name}/{component}/{case}", component, note)
