"""`SamplingParams`: every field's range, and a message that names the value and the range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer.engine import SamplingParams
from deepinfer.errors import RequestError

NAN, INFINITY = float("nan"), float("inf")

REFUSED: list[tuple[str, Any]] = [
    *(("temperature", v) for v in (-1e-9, -1, NAN, INFINITY, -INFINITY, "1", None, True, 1j, [1])),
    *(("top_p", v) for v in (0, -0.1, 1.0000001, 2, NAN, INFINITY, "1", None, True)),
    *(("min_p", v) for v in (-0.1, 1, 1.5, NAN, -INFINITY, "0", None, False)),
    *(("top_k", v) for v in (0, -2, 2**31, 1.0, NAN, "1", None, True)),
    *(("max_tokens", v) for v in (0, -1, 2**31, 1.0, NAN, "1", None, True)),
    *(("seed", v) for v in (-(2**63) - 1, 2**64, 1.0, NAN, "1", True)),
    ("temperature", 10**400),
]

ACCEPTED: list[tuple[str, Any]] = [
    *(("temperature", v) for v in (0, 0.0, 1e-300, 1, 1e300, np.float32(0.5), np.float64(0.5))),
    *(("top_p", v) for v in (1e-300, 0.5, 1, 1.0, np.float32(0.25))),
    *(("min_p", v) for v in (0, 0.0, 0.5, 0.999, np.float32(0.25))),
    *(("top_k", v) for v in (-1, 1, 2**31 - 1, np.int64(5))),
    *(("max_tokens", v) for v in (1, 2**31 - 1, np.int32(3))),
    *(("seed", v) for v in (None, 0, -1, -(2**63), 2**64 - 1, np.uint64(2**64 - 1), np.int64(-5))),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused_values(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} is ") as caught:
        SamplingParams(**{name: value})
    assert "; allowed: " in str(caught.value)
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_accepted_values(name: str, value: Any) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_defaults_are_those_of_the_vendor() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, -1)
    assert (params.min_p, params.seed, params.ignore_eos) == (0.0, None, False)
