"""`SamplingParams`: every field's range, and a message that names the value and the range."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deepinfer.engine import SamplingParams
from deepinfer.errors import NotBuiltYetError, RequestError

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


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "did you mean temperature?"),
        ("best_of", "use n"),
        ("include_stop_str_in_output", "use include_stop"),
        ("max_new_tokens", "use max_tokens"),
        ("bad_words", "use banned_token_ids"),
        ("zzz", "allowed: temperature, top_p"),
    ],
)
def test_an_unknown_name_says_what_to_use(name: str, hint: str) -> None:
    for make in (lambda: SamplingParams(**{name: 1}), lambda: SamplingParams.from_names({name: 1})):
        with pytest.raises(RequestError) as caught:
            make()
        assert str(caught.value).startswith(f"{name!r} is no sampling parameter; {hint}")


def test_seq_seed_is_the_seed() -> None:
    assert SamplingParams(seq_seed=5) == SamplingParams(seed=5)
    assert SamplingParams(seq_seed=5, seed=5).seed == 5
    with pytest.raises(RequestError, match="seed is 4 and seq_seed, its other name, 5"):
        SamplingParams(seq_seed=5, seed=4)


def test_what_the_vendor_has_and_we_do_not() -> None:
    with pytest.raises(NotBuiltYetError, match="structured output"):
        SamplingParams(so_args={"schema_type": "json"})
    with pytest.raises(RequestError, match=r"eos_id is 3.*use stop_token_ids"):
        SamplingParams(eos_id=3)
    assert SamplingParams(eos_id=0, so_args=None) == replace(SamplingParams(), eos_id=0)


def test_params_can_be_copied_and_pickled() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], seq_seed=3)
    assert copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params
    assert replace(params, top_k=3).seed == 3
