"""Whole-model golden checks: logits of prompts and greedy continuations.

Limits and exceptions are those of the data's own description (its rules 1, 2 and 4). They follow
from measured rounding noise: the model is discontinuous (quantisation, selection, routing).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deepinfer.conformance.golden.data import GoldenModel, Tensors
from deepinfer.conformance.golden.metrics import agreement, median, quantile, relative
from deepinfer.conformance.golden.report import ALLOWED, FAILED, Item, Measure
from deepinfer.engine import Chunk, Engine

SHORT = 7
GREEDY_MARGIN = 0.2
BF16_AGREEMENT = 0.78


def check_logits(engine: Engine, model: GoldenModel, data: Tensors, compute: str) -> list[Item]:
    """Every prompt in one piece, and the padded batch as one ragged step."""
    items = []
    for prompt in data.prompts("ids"):
        if prompt == "batch":
            continue
        data.mark(*(f"{prompt}.noise.{known}" for known in ("bf16", "fp32")))
        ids = data.get(f"{prompt}.ids")
        want = data.get(f"{prompt}.logits.{compute}")
        got = run_prompt(engine, ids.numpy())
        items.append(_judge(model, prompt, compute, got, want))
    if "batch.ids" in data.keys:
        items += _check_batch(engine, model, data, compute)
    return allow_one(items, compute)


def run_prompt(engine: Engine, ids: npt.NDArray[np.int64]) -> Tensor:
    """Logits of every position [T, V] from an empty cache."""
    cache = engine.cache.open()
    try:
        return engine.extend(cache, ids, all_rows=True)
    finally:
        engine.cache.close(cache)


def _check_batch(engine: Engine, model: GoldenModel, data: Tensors, compute: str) -> list[Item]:
    ids, mask = data.get("batch.ids"), data.get("batch.mask").bool()
    want = data.get(f"batch.logits.{compute}")
    lengths = mask.sum(1).tolist()
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
    return [
        _judge(model, f"batch.{row}", compute, got_row, want_row)
        for row, (got_row, want_row) in enumerate(
            zip(torch.split(got, lengths), torch.split(want, lengths), strict=True)
        )
    ]


def _judge(model: GoldenModel, prompt: str, compute: str, got: Tensor, want: Tensor) -> Item:
    name = f"{model.name}/logits/{prompt}"
    note = ""
    if got.shape != want.shape:
        measure = Measure("shape equal", 0, ">=", 1)
        return Item.of(name, compute, measure, note=f"{tuple(got.shape)} vs {tuple(want.shape)}")
    tie = model.tie(compute, prompt)
    if tie is not None:
        note = f"positions before the exact tie at {tie}"
        got, want = got[:tie], want[:tie]
    errors = relative(got, want)
    measures = (_fp32 if compute == "fp32" else _bf16)(errors, got, want)
    return Item.of(name, compute, *measures, note=note)


def _fp32(errors: Tensor, got: Tensor, want: Tensor) -> list[Measure]:
    if len(errors) <= SHORT:
        return [Measure("max rel", float(errors.max()), "<=", 1e-4)]
    return [
        Measure("median rel", median(errors), "<=", 0.003),
        Measure("90% rel", quantile(errors, 0.9), "<=", 0.02),
        Measure("argmax equal", agreement(got, want), ">=", 0.96),
    ]


def _bf16(errors: Tensor, got: Tensor, want: Tensor) -> list[Measure]:
    if len(errors) < SHORT:
        return [Measure("max rel", float(errors.max()), "<=", 0.04)]
    if len(errors) == SHORT:
        return [Measure("median rel", median(errors), "<=", 0.06)]
    return [
        Measure("median rel", median(errors), "<=", 0.12),
        Measure("95% rel", quantile(errors, 0.95), "<=", 0.40),
        Measure("argmax equal", agreement(got, want), ">=", BF16_AGREEMENT),
    ]


def allow_one(items: list[Item], compute: str) -> list[Item]:
    """In fp32 one prompt per checkpoint may exceed its limits; it is marked, not hidden."""
    failed = [place for place, item in enumerate(items) if item.verdict == FAILED]
    if compute == "fp32" and len(failed) == 1:
        place = failed[0]
        note = "; ".join(
            part for part in (items[place].note, "one exception per checkpoint") if part
        )
        items[place] = dataclasses.replace(items[place], verdict=ALLOWED, note=note)
    return items


def check_greedy(
    engine: Engine, model: GoldenModel, greedy: Tensors, logits: Tensors, compute: str
) -> list[Item]:
    """fp32: cached decoding token by token. bf16: the golden sequence as a prompt."""
    items = []
    for prompt in greedy.prompts(f"tokens.{compute}"):
        greedy.mark(*(f"{prompt}.second.{known}" for known in ("bf16", "fp32")))
        ids = logits.get(f"{prompt}.ids")
        tokens = greedy.get(f"{prompt}.tokens.{compute}")
        margins = greedy.get(f"{prompt}.margin.{compute}")
        name = f"{model.name}/greedy/{prompt}"
        if compute == "fp32":
            tie = model.tie(compute, f"greedy.{prompt}")
            items.append(_check_decoding(engine, name, ids, tokens, margins, tie))
        else:
            items.append(_check_argmax(engine, name, ids, tokens))
    return allow_one(items, compute)


def _check_decoding(
    engine: Engine, name: str, ids: Tensor, tokens: Tensor, margins: Tensor, tie: int | None
) -> Item:
    """Tokens must match up to the first step whose margin is below the limit, or the first tie."""
    steps = len(tokens)
    small = (margins < GREEDY_MARGIN).nonzero()
    if len(small):
        steps = int(small[0])
    note = f"{steps} of {len(tokens)} steps before the first margin below {GREEDY_MARGIN}"
    if tie is not None and tie - len(ids) + 1 < steps:
        steps = max(0, tie - len(ids) + 1)
        note = f"{steps} of {len(tokens)} steps before the exact tie at {tie}"
    got = decode_greedily(engine, ids.numpy(), steps)
    equal = sum(int(a == b) for a, b in zip(got, tokens.tolist(), strict=False))
    share = equal / steps if steps else 1.0
    return Item.of(name, "fp32", Measure("tokens equal", share, ">=", 1.0), note=note)


def decode_greedily(engine: Engine, ids: npt.NDArray[np.int64], steps: int) -> list[int]:
    """The first `steps` most probable tokens, one cached step each."""
    tokens = ids
    got: list[int] = []
    cache = engine.cache.open()
    try:
        while len(got) < steps:
            logits = engine.extend(cache, tokens)
            got.append(int(logits[0].argmax()))
            tokens = np.append(tokens, got[-1])
    finally:
        engine.cache.close(cache)
    return got


def _check_argmax(engine: Engine, name: str, ids: Tensor, tokens: Tensor) -> Item:
    sequence = torch.cat([ids, tokens])[:-1]
    got = run_prompt(engine, sequence.numpy())[len(ids) - 1 :].argmax(-1)
    share = float((got == tokens).double().mean())
    return Item.of(name, "bf16", Measure("argmax equal", share, ">=", BF16_AGREEMENT))
