"""After every test the shared engines must have all their cache back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import RunnerOf
from tests.engine.runs import nothing_is_held


@pytest.fixture(autouse=True)
def cache_is_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("bundled_runners", "small_runners"):
        if name not in request.fixturenames:
            continue
        runner_of: RunnerOf = request.getfixturevalue(name)
        assert nothing_is_held(runner_of("infer", "bf16")), name
