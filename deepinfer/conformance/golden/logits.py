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
    """fp32: cached decoding, token by token. bf16: the golden sequence as a prompt."""
    prompts = greedy.prompts(f"tokens.{compute}")
    for prompt in prompts:
        greedy.mark(*(f"{prompt}.second.{known}" for known in ("bf16", "fp32")))
        greedy.mark(f"{prompt}.margin.{compute}")
    if compute == "fp32":
        return allow_one(_check_decoding(engine, model, greedy, logits, prompts), compute)
    return [_check_sequence(engine, model, greedy, logits, prompt) for prompt in prompts]


def _check_decoding(
    engine: Engine, model: GoldenModel, greedy: Tensors, logits: Tensors, prompts: list[str]
) -> list[Item]:
    """Tokens must match up to the first step whose margin is below the limit, or the first tie."""
    ids = [logits.get(f"{prompt}.ids") for prompt in prompts]
    wanted = [greedy.get(f"{prompt}.tokens.fp32") for prompt in prompts]
    plans = [
        _steps(model, prompt, len(prompt_ids), greedy.get(f"{prompt}.margin.fp32"))
        for prompt, prompt_ids in zip(prompts, ids, strict=True)
    ]
    got = decode_greedily(engine, [x.numpy() for x in ids], [steps for steps, _ in plans])
    items = []
    for prompt, tokens, want, (steps, note) in zip(prompts, got, wanted, plans, strict=True):
        equal = sum(int(a == b) for a, b in zip(tokens, want.tolist(), strict=False))
        measure = Measure("tokens equal", equal / steps if steps else 1.0, ">=", 1.0)
        items.append(Item.of(f"{model.name}/greedy/{prompt}", "fp32", measure, note=note))
    return items


def _steps(model: GoldenModel, prompt: str, length: int, margins: Tensor) -> tuple[int, str]:
    """How many tokens are comparable, and why no more."""
    total = len(margins)
    small = (margins < GREEDY_MARGIN).nonzero()
    steps = int(small[0]) if len(small) else total
    note = f"{steps} of {total} steps before the first margin below {GREEDY_MARGIN}"
    tie = model.tie("fp32", f"greedy.{prompt}")
    if tie is not None and tie - length + 1 < steps:
        steps = max(0, tie - length + 1)
        note = f"{steps} of {total} steps before the exact tie at {tie}"
    return steps, note


def decode_greedily(
    engine: Engine, prompts: list[npt.NDArray[np.int64]], steps: list[int]
) -> list[list[int]]:
    """The first steps[i] most probable tokens of each prompt, one cached row a step, batched."""
    tokens = list(prompts)
    got: list[list[int]] = [[] for _ in prompts]
    caches = [engine.cache.open() for _ in prompts]
    try:
        while running := [i for i, wanted in enumerate(steps) if len(got[i]) < wanted]:
            chunks = [
                Chunk(tokens[i], caches[i].length, len(tokens[i]), caches[i]) for i in running
            ]
            for i, row in zip(running, engine.step(chunks), strict=True):
                got[i].append(int(row.argmax()))
                tokens[i] = np.append(tokens[i], got[i][-1])
    finally:
        for cache in caches:
            engine.cache.close(cache)
    return got


def _check_sequence(
    engine: Engine, model: GoldenModel, greedy: Tensors, logits: Tensors, prompt: str
) -> Item:
    """Argmax of every position of prompt and continuation, whose golden argmax both files give."""
    ids = logits.get(f"{prompt}.ids")
    tokens = greedy.get(f"{prompt}.tokens.bf16")
    want = torch.cat([logits.get(f"{prompt}.logits.bf16")[:-1].argmax(-1), tokens])
    sequence = torch.cat([ids, tokens])[:-1]
    same = run_prompt(engine, sequence.numpy()).argmax(-1) == want
    measure = Measure("argmax equal", float(same.double().mean()), ">=", BF16_AGREEMENT)
    continuation = float(same[len(ids) - 1 :].double().mean())
    note = f"of the continuation alone: {continuation:.2f}"
    return Item.of(f"{model.name}/greedy/{prompt}", "bf16", measure, note=note)
