"""Random requests through the text interface, with aborts, errors and tiny pools, under a watchdog.

Every request is answered, what runs to its end has the tokens of a run alone, and pools, slots and
threads are as at the start. The seed is in every message. The long run: pytest -m soak.
"""

from __future__ import annotations

import faulthandler
import threading
from typing import Any

import numpy as np
import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.engine import Engine, ModelRunner
from deepinfer.engine.llm import RequestHandle
from tests.engine.runs import nothing_is_held
from tests.engine.test_engine import engine_with


class InjectedError(Exception):
    """Raised by a step now and then."""


def random_request(random: np.random.Generator) -> tuple[Any, SamplingParams]:
    """A prompt, at times a wrong one, and parameters, all from a small set."""
    kind = random.random()
    if kind < 0.04:
        return [[], [10**9], [1] * 500, {"role": "user"}][random.integers(4)], SamplingParams()
    prompt = [int(random.integers(1, 5))] * int(random.integers(1, 40))
    params = SamplingParams(
        temperature=float(random.choice([0.0, 1.5])),
        seed=int(random.integers(3)),
        max_tokens=int(random.integers(1, 9)),
        ignore_eos=True,
        n=int(random.choice([1, 1, 1, 2, 3])),
    )
    return prompt, params


def soak(runner: ModelRunner, seed: int, count: int, step_errors: bool = True) -> dict[str, int]:
    """Submit from three threads while requests are aborted at random; the reasons by count."""
    reasons: dict[str, int] = {}
    known: dict[tuple[Any, ...], list[int]] = {}
    lock = threading.Lock()
    with engine_with(runner, blocks=12, pages=40, slots=5):
        llm = LLM.of(Engine(runner, settings=runner.settings))
        run, errors = runner.backbone.run, np.random.default_rng(seed)

        def failing(*arguments: Any) -> Any:
            if step_errors and errors.random() < 0.01:
                raise InjectedError(f"seed {seed}")
            return run(*arguments)

        runner.backbone.run = failing  # type: ignore[method-assign]

        def work(place: int) -> None:
            random = np.random.default_rng((seed, place))
            pending: list[tuple[RequestHandle, Any, SamplingParams]] = []
            for number in range(count // 3):
                prompt, params = random_request(random)
                handle = llm.submit(prompt, params, f"{place}/{number}")
                pending.append((handle, prompt, params))
                if random.random() < 0.1:
                    pending[int(random.integers(len(pending)))][0].abort()
                if len(pending) > 12:
                    check(*pending.pop(0))
            for one in pending:
                check(*one)

        def check(handle: RequestHandle, prompt: Any, params: SamplingParams) -> None:
            result = handle.result(900)
            with lock:
                for output in result.outputs:
                    reason = output.finish_reason
                    reasons[reason] = reasons.get(reason, 0) + 1
                    if reason != "length":
                        continue
                    assert len(output.token_ids) == params.max_tokens, f"seed {seed}"
                    key = len(prompt), prompt[0], params.temperature, params.seed, output.index
                    longer = known.setdefault(key, output.token_ids)
                    shared = min(len(longer), len(output.token_ids))
                    assert output.token_ids[:shared] == longer[:shared], f"seed {seed}: {key}"
                    if len(output.token_ids) > len(longer):
                        known[key] = output.token_ids

        failed: list[BaseException] = []

        def guarded(place: int) -> None:
            try:
                work(place)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=(place,)) for place in range(3)]
        faulthandler.dump_traceback_later(60 + count, exit=True)  # a stall ends the process
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            faulthandler.cancel_dump_traceback_later()
            llm.close()
            runner.backbone.run = run  # type: ignore[method-assign]
        if failed:
            raise failed[0]
        assert nothing_is_held(runner), f"seed {seed}"
    assert not [t for t in threading.enumerate() if t.name == "deepinfer-engine"]
    return reasons


@pytest.mark.slow
def test_random_requests(small_runner: ModelRunner) -> None:
    reasons = soak(small_runner, seed=1, count=30)
    assert sum(reasons.values()) >= 30, reasons
    assert {"length", "error"} <= set(reasons), reasons


@pytest.mark.soak
def test_soak_of_two_thousand_requests(small_runner: ModelRunner) -> None:
    reasons = soak(small_runner, seed=2, count=2001)
    print(reasons)
    assert {"length", "error", "abort", "prompt_length_exceeded"} <= set(reasons), reasons
