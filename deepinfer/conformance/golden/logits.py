"""Logits of whole prompts against stored ones.

Limits and exceptions are those of the data's own description (its rules 1 and 2). They follow from
measured rounding noise: the model is discontinuous (quantisation, selection, routing).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.conformance.golden.comparison import attempt, compared
from deepinfer.conformance.golden.data import COMPUTES, GoldenModel, Tensors
from deepinfer.conformance.golden.metrics import agreement, median, quantile, relative, worst
from deepinfer.conformance.golden.report import ALLOWED, FAILED, Item, Measure
from deepinfer.engine import Chunk, Engine

SHORT = 7
AGREEMENT = {"fp32": 0.96, "bf16": 0.78}


def check_logits(engine: Engine, model: GoldenModel, data: Tensors, compute: str) -> Iterator[Item]:
    """Every prompt in one piece, and the padded batch as one ragged step."""
    items: list[Item] = []
    for prompt in data.prompts("ids"):
        data.mark(*(f"{prompt}.noise.{known}" for known in COMPUTES))
        check = _check_batch if prompt == "batch" else _check_prompt
        bound = functools.partial(check, engine, model, data, compute, prompt)
        items += attempt(f"{model.name}/logits/{prompt}", compute, bound)
    yield from allow_one(items, compute)


def run_prompt(engine: Engine, ids: npt.NDArray[np.int64]) -> Tensor:
    """Logits of every position [T, V] from an empty cache."""
    cache = engine.cache.open()
    try:
        return engine.extend(cache, ids, all_rows=True)
    finally:
        engine.cache.close(cache)


def _check_prompt(
    engine: Engine, model: GoldenModel, data: Tensors, compute: str, prompt: str
) -> Iterator[Item]:
    want = data.get(f"{prompt}.logits.{compute}")
    got = run_prompt(engine, data.get(f"{prompt}.ids").cpu().numpy())
    yield _judge(model, prompt, compute, got, want)


def _check_batch(
    engine: Engine, model: GoldenModel, data: Tensors, compute: str, batch: str
) -> Iterator[Item]:
    ids, mask = (data.get(f"{batch}.{name}").cpu() for name in ("ids", "mask"))
    want = data.get(f"{batch}.logits.{compute}")
    lengths: list[int] = mask.bool().sum(1).tolist()
    caches = [engine.cache.open() for _ in lengths]
    try:
        chunks = [
            Chunk(ids[row, :length].numpy(), 0, length, caches[row])
            for row, length in enumerate(lengths)
        ]
        got = engine.step(chunks, all_rows=True)
    finally:
        for cache in caches:
            engine.cache.close(cache)
    for row, (got_row, want_row) in enumerate(
        zip(torch.split(got, lengths), torch.split(want, lengths), strict=True)
    ):
        yield _judge(model, f"{batch}.{row}", compute, got_row, want_row)


def _judge(model: GoldenModel, prompt: str, compute: str, got: Tensor, want: Tensor) -> Item:
    note, length, tie = "", len(want), model.tie(compute, prompt)
    if tie is not None and got.shape == want.shape:
        note = f"positions before the exact tie at {tie}"
        got, want = got[:tie], want[:tie]
    elif compute == "fp32" and model.ties is None:
        note = "no ties.json: exact ties are not known"
    limits = functools.partial(_fp32 if compute == "fp32" else _bf16, length)
    return compared(f"{model.name}/logits/{prompt}", compute, got, want, limits, note)


def _fp32(length: int, got: Tensor, want: Tensor) -> list[Measure]:
    errors = relative(got, want)
    if length <= SHORT:
        return [Measure("max rel", worst(errors), "<=", 1e-4)]
    return [
        Measure("median rel", median(errors), "<=", 0.003),
        Measure("90% rel", quantile(errors, 0.9), "<=", 0.02),
        Measure("argmax equal", agreement(got, want), ">=", AGREEMENT["fp32"]),
    ]


def _bf16(length: int, got: Tensor, want: Tensor) -> list[Measure]:
    errors = relative(got, want)
    if length < SHORT:
        return [Measure("max rel", worst(errors), "<=", 0.04)]
    if length == SHORT:
        return [Measure("median rel", median(errors), "<=", 0.06)]
    return [
        Measure("median rel", median(errors), "<=", 0.12),
        Measure("95% rel", quantile(errors, 0.95), "<=", 0.40),
        Measure("argmax equal", agreement(got, want), ">=", AGREEMENT["bf16"]),
    ]


def allow_one(items: list[Item], compute: str) -> list[Item]:
    """In fp32 one prompt per checkpoint may exceed its limits; it is marked, not hidden.

    Only a number may exceed a limit: NaN, another shape or an error is never allowed. And one
    prompt is an exception only where another one keeps the rule.
    """
    failed = [place for place, item in enumerate(items) if item.outcome == FAILED]
    if compute != "fp32" or len(failed) != 1 or len(items) < 2:
        return items
    place = failed[0]
    item = items[place]
    if not item.measured:
        return items
    note = "; ".join(part for part in (item.note, "one exception per checkpoint") if part)
    allowed = dataclasses.replace(item, outcome=ALLOWED, note=note)
    return [*items[:place], allowed, *items[place + 1 :]]
