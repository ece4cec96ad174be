"""Random requests, aborts and errors in tiny pools: every text right, nothing left behind.

The message of a failure has the seed. The long runs: pytest -m soak.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer.engine.request import Request
from tests.engine.shadow import (
    assert_alone,
    assert_as_at_the_start,
    random_request,
    shadow_engine,
)


def random_limits(random: np.random.Generator) -> dict[str, Any]:
    """Pools between barely enough and roomy, steps of a few rows or many."""
    slots = int(random.integers(3, 9))
    return {
        "blocks": int(random.integers(4, 13)),
        "pages": int(random.integers(6, 40)),
        "slots": slots,
        "max_num_seqs": int(random.integers(3, slots + 1)),
        "max_num_batched_tokens": int(random.choice([4, 9, 16, 64])),
    }


def random_run(seed: int, count: int, aborts: int, errors: bool) -> None:
    """Requests that arrive at any time, aborts and errors between them; each is answered once."""
    random = np.random.default_rng(seed)
    limits = random_limits(random)
    engine, runner = shadow_engine(**limits)
    what = f"seed {seed}, {limits}"
    requests: list[Request] = []
    answers: list[Request] = []
    while len(requests) < count or engine.has_work:
        assert len(runner.num_rows) < 200 * count, f"no end in sight; {what}"
        if len(requests) < count and random.random() < 0.6:
            requests.append(engine.add(*random_request(random)))
        if aborts and requests and random.random() < 0.5:
            aborts -= 1
            victim = requests[-int(random.integers(1, min(len(requests), 8) + 1))]
            if engine.abort(victim.request_id):
                answers.append(victim)
        if errors and random.random() < 0.02:
            runner.raises = RuntimeError("now")
        answers += engine.step()
        assert not runner.num_rows or runner.num_rows[-1] <= limits["max_num_batched_tokens"]
    assert sorted(r.number for r in answers) == list(range(count)), what
    assert all(request.finished for request in requests), what
    assert_alone(*requests)
    assert_as_at_the_start(engine)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_requests_have_the_texts_of_runs_alone(seed: int) -> None:
    random_run(seed, count=25, aborts=0, errors=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_random_requests_with_aborts_and_errors(seed: int) -> None:
    random_run(seed, count=40, aborts=50, errors=True)


def aborting_run(seed: int, aborts: int) -> None:
    """Many short-lived requests of which live ones are aborted: waiting, running or planned."""
    random = np.random.default_rng(seed)
    engine, runner = shadow_engine(blocks=8, pages=30, slots=5, max_num_batched_tokens=12)
    live: dict[str, Request] = {}
    left, answered, added = aborts, 0, 0
    while left or engine.has_work:
        assert len(runner.num_rows) < 50 * aborts, f"no end in sight; seed {seed}"
        while left and len(live) < 12:
            request = engine.add(*random_request(random, longest=20))
            live[request.request_id] = request
            added += 1
        for _ in range(int(random.integers(0, 4)) if left else 0):
            if live and left:
                name = random.choice(list(live))
                assert engine.abort(live.pop(name).request_id), f"seed {seed}"
                left -= 1
        done = engine.step()
        live = {name: request for name, request in live.items() if not request.finished}
        answered += len(done)
    assert answered + aborts == added, f"seed {seed}"
    assert not live, f"seed {seed}"
    assert_as_at_the_start(engine)


@pytest.mark.slow
def test_aborts_at_random_points() -> None:
    aborting_run(seed=7, aborts=150)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_soak_of_requests(seed: int) -> None:
    """2,000 requests in 20 runs, with errors and aborts."""
    random_run(seed, count=100, aborts=500, errors=True)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2000, 2005))
def test_soak_of_aborts(seed: int) -> None:
    """10,000 aborts of live requests in 5 runs."""
    aborting_run(seed, aborts=2000)
