"""Greedy continuations against stored ones (rule 4 of the data's own description).

fp32: the stored sequence as a prompt, whose argmax must be the next stored token up to the first
step of a small margin; and decoding from the cache, whose shapes are others, up to the first step
of a larger one. bf16: the stored sequence as a prompt, by the argmax rule of prompts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.conformance.golden.comparison import attempt
from deepinfer.conformance.golden.data import COMPUTES, LOGITS, GoldenModel, Tensors
from deepinfer.conformance.golden.logits import AGREEMENT, allow_one, raise_errors, run_prompts
from deepinfer.conformance.golden.metrics import same_place
from deepinfer.conformance.golden.report import Item, Measure
from deepinfer.engine import Engine, SamplingParams

MARGIN = 0.02
"""Top-1 minus top-2 logit, from which two fp32 evaluations choose the same token."""

CACHED_MARGIN = 0.2
"""The same where one of them decodes from a cache: single FP8 and FP4 codes flip."""


@dataclass(frozen=True)
class _Continuation:
    """One prompt with its stored continuation.

    ids [N], tokens [M], margins [M]; places [N + M - 1]: stored argmax at every position of both,
    less the last token, which nothing follows. first_tie: position of the first exact tie; tie:
    that of the continuation's own.
    """

    name: str
    ids: Tensor
    tokens: Tensor
    margins: Tensor
    places: Tensor
    first_tie: int | None
    tie: int | None

    @property
    def sequence(self) -> Tensor:
        """Prompt and continuation, less the last token."""
        return torch.cat([self.ids, self.tokens])[:-1]

    @property
    def whole_steps(self) -> int:
        """Steps whose token must be that of the sequence run as a prompt."""
        return self._steps(MARGIN, self.first_tie)

    @property
    def cached_steps(self) -> int:
        """Steps whose token must be that of decoding from a cache."""
        return self._steps(CACHED_MARGIN, self.tie)

    def _steps(self, margin: float, tie: int | None) -> int:
        small = (~(self.margins >= margin)).nonzero()
        steps = int(small[0]) if len(small) else len(self.margins)
        return steps if tie is None else max(0, min(steps, tie - len(self.ids) + 1))


def check_greedy(
    engine: Engine, model: GoldenModel, greedy: Tensors, logits: Tensors | None, compute: str
) -> Iterator[Item]:
    """Every prompt that has stored continuations."""
    name = f"{model.name}/greedy"
    prompts = greedy.prompts(*(f"tokens.{known}" for known in COMPUTES))
    read: list[_Continuation] = []
    for prompt in prompts:
        greedy.mark(*(f"{prompt}.{key}.{compute}" for key in ("second", "margin")))

        def read_one(prompt: str = prompt) -> Iterable[Item]:
            read.append(_read(model, greedy, logits, compute, prompt))
            return []

        yield from attempt(f"{name}/{prompt}", compute, read_one)
    if compute == "bf16":
        for golden in read:
            check = functools.partial(_check_bf16, engine, f"{name}/{golden.name}", golden)
            yield from attempt(f"{name}/{golden.name}", compute, check)
        return
    decoded: list[list[int]] = []

    def decode() -> Iterable[Item]:
        decoded.extend(decode_greedily(engine, read))
        return []

    yield from attempt(f"{name}/cached", compute, decode)
    items: list[Item] = []
    for golden, tokens in zip(read, decoded or [[] for _ in read], strict=True):
        check = functools.partial(_check_fp32, engine, f"{name}/{golden.name}", golden, tokens)
        items += attempt(f"{name}/{golden.name}", compute, check)
    yield from allow_one(items, compute)


def _read(
    model: GoldenModel, greedy: Tensors, logits: Tensors | None, compute: str, prompt: str
) -> _Continuation:
    if logits is None:
        raise ValueError(f"the ids of the prompt are in {LOGITS}, which is not there")
    ids = logits.get(f"{prompt}.ids").cpu()
    tokens = greedy.get(f"{prompt}.tokens.{compute}").cpu()
    margins = greedy.get(f"{prompt}.margin.{compute}").cpu()
    if not len(tokens) or len(margins) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens with {len(margins)} margins")
    places = torch.cat([logits.get(f"{prompt}.logits.{compute}")[:-1].argmax(-1).cpu(), tokens])
    own = f"greedy.{prompt}"
    ties = (model.tie(compute, prompt, own), model.tie(compute, own))
    return _Continuation(prompt, ids, tokens, margins, places, *ties)


def _check_bf16(engine: Engine, name: str, golden: _Continuation) -> Iterator[Item]:
    """Argmax of every position of prompt and continuation, whose golden argmax both files give."""
    got = run_prompts(engine, [golden.sequence.numpy()])[0].cpu()
    own = same_place(got[len(golden.ids) - 1 :], golden.tokens)
    note = f"of the continuation alone: {own:.2f}"
    yield Item.of(name, "bf16", _agreement(got, golden.places, "bf16"), note=note)


def _check_fp32(
    engine: Engine, name: str, golden: _Continuation, decoded: list[int]
) -> Iterator[Item]:
    """Up to three comparisons, of which the last one always has something to compare."""
    got = run_prompts(engine, [golden.sequence.numpy()])[0].cpu()
    measures = []
    whole, cached = golden.whole_steps, golden.cached_steps
    if whole:
        rows = got[len(golden.ids) - 1 :][:whole]
        equal = same_place(rows, golden.tokens[:whole])
        measures.append(Measure("tokens equal", equal, ">=", 1.0))
    if cached:
        equal = sum(a == b for a, b in zip(decoded, golden.tokens.tolist(), strict=False)) / cached
        measures.append(Measure("tokens equal from the cache", equal, ">=", 1.0))
    tie = golden.first_tie
    measures.append(_agreement(got[:tie], golden.places[:tie], "fp32"))
    total = len(golden.tokens)
    note = f"{whole} and {cached} of {total} steps before a margin below {MARGIN}, {CACHED_MARGIN}"
    if tie is not None:
        note += f" or the exact tie at {tie}"
    yield Item.of(name, "fp32", *measures, note=note)


def _agreement(got: Tensor, places: Tensor, compute: str) -> Measure:
    return Measure("argmax equal", same_place(got, places), ">=", AGREEMENT[compute])


def decode_greedily(engine: Engine, prompts: list[_Continuation]) -> list[list[int]]:
    """The comparable steps of every prompt, as requests that decode beside each other.

    A prompt ends early where its logits hold a NaN.
    """
    requests = {
        place: engine.add(
            prompt.ids.numpy(),
            SamplingParams(temperature=0, max_tokens=prompt.cached_steps, ignore_eos=True),
        )
        for place, prompt in enumerate(prompts)
        if prompt.cached_steps
    }
    engine.drain()
    raise_errors(requests.values())
    return [
        requests[place].sequences[0].output.tolist() if place in requests else []
        for place in range(len(prompts))
    ]
