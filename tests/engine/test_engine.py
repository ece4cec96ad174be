"""Many requests on the real model: the logits of every draw have the bits of a run alone.

Pools are tiny and steps short, so prompts are cut, sequences are preempted and resumed, and samples
share and copy blocks. The run alone is one forward over prompt and output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.backend import accumulation_dtype
from deepinfer.cache import CacheManager
from deepinfer.engine import Engine, ModelRunner, SamplingParams
from deepinfer.engine.admission import Limits
from deepinfer.engine.request import FinishReason, Request, Sequence
from tests.engine.runs import assert_same_bits, generate, random_tokens, whole
from tests.engine.shadow import assert_as_at_the_start, drain

Logits = dict[tuple[int, int], list[Tensor]]
"""By request number and sample: the logits of each draw [V], in order."""


@contextmanager
def engine_with(
    runner: ModelRunner, blocks: int = 32, pages: int = 96, slots: int = 8, **limits: Any
) -> Iterator[tuple[Engine, Logits]]:
    """An engine with cache memory of its own, and the logits that it draws from."""
    cache, pools = runner.cache, runner.pools
    runner.cache = CacheManager(runner.layout, blocks, pages, slots)
    runner.pools = runner.cache.pools(
        runner.operators.device, accumulation_dtype(runner.options.dtype)
    )
    try:
        engine = Engine(
            runner, Limits(**{"max_num_seqs": slots, "max_num_batched_tokens": 64, **limits})
        )
        kept: Logits = {}
        draw = engine.sampler.draw

        def recorded(logits: Tensor, slots: Any, rows: list[Sequence], positions: Any) -> Any:
            for row, one in zip(logits, rows, strict=True):
                kept.setdefault((one.request.number, one.index), []).append(row.clone())
            return draw(logits, slots, rows, positions)

        engine.sampler.draw = recorded  # type: ignore[method-assign]
        yield engine, kept
        assert_as_at_the_start(engine)
    finally:
        runner.cache, runner.pools = cache, pools


def assert_alone(runner: ModelRunner, requests: list[Request], kept: Logits, what: str) -> None:
    """Each draw's logits are those of one forward over the tokens before it."""
    for request in requests:
        for sequence in request.sequences:
            name = f"{what}, {request.request_id} sample {sequence.index}"
            assert sequence.finish_reason in (FinishReason.LENGTH, FinishReason.STOP), name
            tokens = sequence.tokens[: sequence.known]
            want = whole(runner, tokens[:-1])[sequence.prompt_length - 1 :]
            assert_same_bits(torch.stack(kept[request.number, sequence.index]), want, name)


def params_of(random: np.random.Generator, samples: int = 1) -> SamplingParams:
    return SamplingParams(
        temperature=float(random.choice([0.0, 1.0, 2.0])),
        max_tokens=int(random.integers(1, 9)),
        seed=int(random.integers(0, 2**62)),
        n=int(random.integers(1, samples + 1)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_mixes_have_the_bits_of_runs_alone(seed: int, small_runner: ModelRunner) -> None:
    random = np.random.default_rng(seed)
    limits = {
        "blocks": int(random.integers(4, 9)),
        "pages": int(random.integers(8, 30)),
        "max_num_batched_tokens": int(random.choice([5, 12, 40])),
        "max_num_seqs": int(random.integers(3, 9)),
    }
    requests: list[Request] = []
    with engine_with(small_runner, **limits) as (engine, kept):
        while len(requests) < 10 or engine.has_work:
            if len(requests) < 10 and random.random() < 0.7:
                prompt = random_tokens(small_runner, int(random.integers(1, 50)), len(requests))
                requests.append(engine.add(prompt, params_of(random, samples=3)))
            engine.step()
        preempted = engine.scheduler.num_preempted
    assert_alone(small_runner, requests, kept, f"seed {seed}, {limits}, {preempted} preempted")


@pytest.mark.slow
def test_preemption_and_resumption(small_runner: ModelRunner) -> None:
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    with engine_with(small_runner, blocks=5, max_num_batched_tokens=20) as (engine, kept):
        requests = [engine.add(random_tokens(small_runner, 25, i), params) for i in range(3)]
        drain(engine)
        assert engine.scheduler.num_preempted >= 1
    assert_alone(small_runner, requests, kept, "preempted")


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 4, 15, 16, 17, 33])
def test_samples_share_the_prompt(length: int, small_runner: ModelRunner) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=5, seed=3, n=3, ignore_eos=True)
    with engine_with(small_runner) as (engine, kept):
        request = engine.add(random_tokens(small_runner, length), params)
        engine.step()
        assert engine.runner.cache.blocks.num_used == -(-length // 16)
        drain(engine)
    assert_alone(small_runner, [request], kept, f"prompt of {length}")


@pytest.mark.slow
def test_sample_i_has_the_text_of_seed_plus_i(small_runner: ModelRunner) -> None:
    prompt = random_tokens(small_runner, 19)
    params = SamplingParams(temperature=1.5, max_tokens=5, seed=2**64 - 2, n=3, ignore_eos=True)
    with engine_with(small_runner) as (engine, _):
        request = engine.add(prompt, params)
        drain(engine)
    for sequence in request.sequences:
        own = dataclasses.replace(params, n=1, seed=(2**64 - 2 + sequence.index) % 2**64)
        want = [token.token_id for token in generate(small_runner, prompt, own)]
        assert sequence.output.tolist() == want, sequence.index


@pytest.mark.slow
def test_order_of_arrival_changes_no_text(small_runner: ModelRunner) -> None:
    params = SamplingParams(temperature=1.2, max_tokens=6, seed=9)
    prompts = [random_tokens(small_runner, length, length) for length in (3, 30, 11, 18)]
    texts = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        with engine_with(small_runner, blocks=6, max_num_batched_tokens=9) as (engine, _):
            requests = {i: engine.add(prompts[i], params) for i in order}
            drain(engine)
        texts.append([requests[i].sequences[0].output.tolist() for i in range(4)])
    assert texts[0] == texts[1]


def test_nan_in_one_request_fails_it_alone(
    small_runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    head = small_runner.backbone.head

    def spoiled(residual: Any, rows: Any) -> Tensor:
        logits = head(residual, rows)
        if len(logits) > 1:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(small_runner.backbone, "head", spoiled)
    with engine_with(small_runner) as (engine, kept):
        requests = [engine.add(random_tokens(small_runner, 6, i), params) for i in range(2)]
        drain(engine)
    monkeypatch.undo()
    bad = requests[1].sequences[0]
    assert (bad.finish_reason, bad.output_length) == (FinishReason.ERROR, 0)
    assert "NaN" in bad.error
    assert_alone(small_runner, requests[:1], kept, "beside NaN")


@pytest.mark.slow
def test_stop_token_ids_end_with_their_id(small_runner: ModelRunner) -> None:
    prompt = random_tokens(small_runner, 9)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    text = [token.token_id for token in generate(small_runner, prompt, params)]
    last = next(i for i in range(1, 6) if text[i] not in text[:i])
    with engine_with(small_runner) as (engine, _):
        stops = (text[last], 0 if text[last] else 1)
        request = engine.add(prompt, dataclasses.replace(params, stop_token_ids=stops))
        drain(engine)
    sequence = request.sequences[0]
    assert sequence.output.tolist() == text[: last + 1]
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, text[last])
