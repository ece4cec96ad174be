"""After every test the shared engines must have all their cache back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import EngineOf
from tests.engine.runs import nothing_is_held


@pytest.fixture(autouse=True)
def cache_is_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("bundled_engines", "small_engines"):
        if name not in request.fixturenames:
            continue
        engine_of: EngineOf = request.getfixturevalue(name)
        assert nothing_is_held(engine_of("infer", "bf16")), name
