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
from deepinfer.engine import Engine, SamplingParams
from deepinfer.engine.core import EngineCore
from deepinfer.engine.request import FinishReason, Request, Sequence
from deepinfer.engine.scheduler import Limits
from deepinfer.errors import RequestError
from tests.engine.runs import assert_same_bits, random_tokens, whole
from tests.engine.shadow import assert_as_at_the_start, drain

Logits = dict[tuple[int, int], list[Tensor]]
"""By request number and sample: the logits of each draw [V], in order."""


@contextmanager
def core_of(
    engine: Engine, blocks: int = 32, pages: int = 96, slots: int = 8, **limits: Any
) -> Iterator[tuple[EngineCore, Logits]]:
    """A core over pools of its own, and the logits that it draws from."""
    cache, pools = engine.cache, engine.pools
    engine.cache = CacheManager(engine.layout, blocks, pages, slots)
    engine.pools = engine.cache.pools(
        engine.operators.device, accumulation_dtype(engine.options.dtype)
    )
    try:
        core = EngineCore(
            engine, Limits(**{"max_num_seqs": slots, "max_num_batched_tokens": 64, **limits})
        )
        kept: Logits = {}
        draw = core.sampler.draw

        def recorded(logits: Tensor, slots: Any, rows: list[Sequence], positions: Any) -> Any:
            for row, one in zip(logits, rows, strict=True):
                kept.setdefault((one.request.number, one.index), []).append(row.clone())
            return draw(logits, slots, rows, positions)

        core.sampler.draw = recorded  # type: ignore[method-assign]
        yield core, kept
        assert_as_at_the_start(core)
    finally:
        engine.cache, engine.pools = cache, pools


def assert_alone(engine: Engine, requests: list[Request], kept: Logits, what: str) -> None:
    """Each draw's logits are those of one forward over the tokens before it."""
    for request in requests:
        for sequence in request.sequences:
            name = f"{what}, {request.request_id} sample {sequence.index}"
            assert sequence.finish_reason in (FinishReason.LENGTH, FinishReason.STOP), name
            tokens = sequence.tokens[: sequence.known]
            want = whole(engine, tokens[:-1])[sequence.prompt_length - 1 :]
            assert_same_bits(torch.stack(kept[request.number, sequence.index]), want, name)


def params_of(random: np.random.Generator, samples: int = 1) -> SamplingParams:
    return SamplingParams(
        temperature=float(random.choice([0.0, 1.0, 2.0])),
        max_tokens=int(random.integers(1, 9)),
        seed=int(random.integers(0, 2**62)),
        n=int(random.integers(1, samples + 1)),
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_mixes_have_the_bits_of_runs_alone(seed: int, small_engine: Engine) -> None:
    random = np.random.default_rng(seed)
    limits = {
        "blocks": int(random.integers(4, 9)),
        "pages": int(random.integers(8, 30)),
        "max_num_batched_tokens": int(random.choice([5, 12, 40])),
        "max_num_seqs": int(random.integers(3, 9)),
    }
    requests: list[Request] = []
    with core_of(small_engine, **limits) as (core, kept):
        while len(requests) < 10 or core.has_work:
            if len(requests) < 10 and random.random() < 0.7:
                prompt = random_tokens(small_engine, int(random.integers(1, 50)), len(requests))
                requests.append(core.add(prompt, params_of(random, samples=3)))
            core.step()
        preempted = core.scheduler.num_preempted
    assert_alone(small_engine, requests, kept, f"seed {seed}, {limits}, {preempted} preempted")


def test_preemption_and_resumption(small_engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    with core_of(small_engine, blocks=5, max_num_batched_tokens=20) as (core, kept):
        requests = [core.add(random_tokens(small_engine, 25, i), params) for i in range(3)]
        drain(core)
        assert core.scheduler.num_preempted >= 1
    assert_alone(small_engine, requests, kept, "preempted")


@pytest.mark.parametrize("length", [1, 2, 4, 15, 16, 17, 33])
def test_samples_share_the_prompt(length: int, small_engine: Engine) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=5, seed=3, n=3, ignore_eos=True)
    with core_of(small_engine) as (core, kept):
        request = core.add(random_tokens(small_engine, length), params)
        core.step()
        assert core.runner.cache.blocks.num_used == -(-length // 16)
        drain(core)
    assert_alone(small_engine, [request], kept, f"prompt of {length}")


def test_sample_i_has_the_text_of_seed_plus_i(small_engine: Engine) -> None:
    prompt = random_tokens(small_engine, 19)
    params = SamplingParams(temperature=1.5, max_tokens=5, seed=2**64 - 2, n=3, ignore_eos=True)
    with core_of(small_engine) as (core, _):
        request = core.add(prompt, params)
        drain(core)
    for sequence in request.sequences:
        own = dataclasses.replace(params, n=1, seed=(2**64 - 2 + sequence.index) % 2**64)
        want = [token.token_id for token in small_engine.generate(prompt, own)]
        assert sequence.output.tolist() == want, sequence.index


def test_order_of_arrival_changes_no_text(small_engine: Engine) -> None:
    params = SamplingParams(temperature=1.2, max_tokens=6, seed=9)
    prompts = [random_tokens(small_engine, length, length) for length in (3, 30, 11, 18)]
    texts = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        with core_of(small_engine, blocks=6, max_num_batched_tokens=9) as (core, _):
            requests = {i: core.add(prompts[i], params) for i in order}
            drain(core)
        texts.append([requests[i].sequences[0].output.tolist() for i in range(4)])
    assert texts[0] == texts[1]


def test_nan_in_one_request_fails_it_alone(
    small_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    head = small_engine.backbone.head

    def spoiled(residual: Any, rows: Any) -> Tensor:
        logits = head(residual, rows)
        if len(logits) > 1:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(small_engine.backbone, "head", spoiled)
    with core_of(small_engine) as (core, kept):
        requests = [core.add(random_tokens(small_engine, 6, i), params) for i in range(2)]
        drain(core)
    monkeypatch.undo()
    bad = requests[1].sequences[0]
    assert (bad.finish_reason, bad.output_length) == (FinishReason.ERROR, 0)
    assert "NaN" in bad.error
    assert_alone(small_engine, requests[:1], kept, "beside NaN")


def test_stop_token_ids_end_with_their_id(small_engine: Engine) -> None:
    prompt = random_tokens(small_engine, 9)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    text = [token.token_id for token in small_engine.generate(prompt, params)]
    last = next(i for i in range(1, 6) if text[i] not in text[:i])
    with core_of(small_engine) as (core, _):
        stops = (text[last], 0 if text[last] else 1)
        request = core.add(prompt, dataclasses.replace(params, stop_token_ids=stops))
        drain(core)
    sequence = request.sequences[0]
    assert sequence.output.tolist() == text[: last + 1]
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, text[last])


def test_generate_gives_one_text(small_engine: Engine) -> None:
    with pytest.raises(RequestError, match="n is 2 and this call gives one text"):
        next(small_engine.generate([1, 2], SamplingParams(n=2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "end"}, "this call has no text; use deepinfer.LLM"),
        ({"logprobs": True}, "returns tokens only"),
        ({"top_logprobs": 2}, "returns tokens only"),
        ({"prompt_logprobs": True}, "returns tokens only"),
    ],
)
def test_an_option_without_effect_is_refused(
    options: dict[str, Any], message: str, small_engine: Engine
) -> None:
    with pytest.raises(RequestError, match=message):
        next(small_engine.generate([1, 2], SamplingParams(**options)))
