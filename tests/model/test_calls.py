"""The model's call list against what the model really calls, on the bundled checkpoint.

The list is traced from the configuration alone; a tap on the resolved table sees the calls. The
lists of known models are held against stored ones.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

from deepinfer.backend import OPERATORS, CallSpec, Contract, Numerics
from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.backend.trace import shown_facts
from deepinfer.config import ModelConfig
from deepinfer.data import bundled_checkpoint
from deepinfer.engine import EngineOptions, SamplingParams, open_engine
from deepinfer.model import model_calls
from deepinfer.model.calls import CallLimits
from tests.config.released import released_config
from tests.model import stored_calls

ROWS, SEQUENCES, LENGTH = 48, 2, 64
LIMITS = CallLimits(ROWS, SEQUENCES, LENGTH)
PACKING = {"pack_linear", "pack_table", "pack_experts", "pack_vector"}
CASES = [
    (Numerics.REF, "bf16"),
    (Numerics.REF, "fp32"),
    (Numerics.INFER, "bf16"),
    (Numerics.INFER, "fp64"),
]
SLOW_CASES = [case for case in CASES if case != CASES[2]]
cases = pytest.mark.parametrize(
    ("numerics", "dtype"),
    [
        CASES[2],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case != CASES[2]),
    ],
)


@dataclass
class Seen:
    """Operators that ran, and the facts that their arguments showed."""

    operators: set[str] = field(default_factory=set)
    facts: dict[str, set[tuple[tuple[str, Any], ...]]] = field(default_factory=dict)

    def tap(self, operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        self.operators.add(operator)
        if operator not in PACKING:
            facts = shown_facts(operator, arguments)
            self.facts.setdefault(operator, set()).add(tuple(sorted(facts.items())))


@cache
def run(numerics: Numerics, dtype: str) -> tuple[list[CallSpec], Seen]:
    """The list of the bundled model, and what it calls for two sequences and one drawn token."""
    options = EngineOptions(
        numerics=numerics.value,
        compute=dtype,
        max_model_len=LENGTH,
        max_num_batched_tokens=ROWS,
        max_num_seqs=SEQUENCES,
    )
    seen = Seen()
    with open_engine(bundled_checkpoint(), select_backend(REFERENCE), options) as engine:
        calls = model_calls(engine.runner.config, numerics, dtype, LIMITS)
        tokens = np.arange(3, 3 + 2 * LENGTH, 2)
        with engine.tapped(seen.tap):
            engine.add(tokens[:20], SamplingParams(max_tokens=2))
            engine.add(tokens[:13], SamplingParams(max_tokens=1))
            engine.drain()
            engine.add(tokens[:9], SamplingParams(max_tokens=2, n=2, logprobs=True))
            engine.drain()
    return calls, seen


def listed(calls: list[CallSpec], operator: str, names: set[str]) -> set[tuple[Any, ...]]:
    """The listed facts of an operator, restricted to some names."""
    return {
        tuple((name, value) for name, value in call.facts if name in names)
        for call in calls
        if call.operator == operator
    }


def release() -> ModelConfig:
    return ModelConfig.from_dict(released_config())


@pytest.mark.slow
@cases
def test_the_listed_operators_are_those_that_run(numerics: Numerics, dtype: str) -> None:
    calls, seen = run(numerics, dtype)
    assert {call.operator for call in calls} == seen.operators - PACKING


@pytest.mark.slow
@cases
def test_listed_facts_are_those_of_the_arguments(numerics: Numerics, dtype: str) -> None:
    calls, seen = run(numerics, dtype)
    for operator, shown in seen.facts.items():
        expected = listed(calls, operator, {name for facts in shown for name, _ in facts})
        assert shown == expected, f"only run: {shown - expected}; only listed: {expected - shown}"


@pytest.mark.slow
@cases
def test_inherited_facts_are_few(numerics: Numerics, dtype: str) -> None:
    """What no argument shows is compared with nothing that ran."""
    calls, seen = run(numerics, dtype)
    hidden = {
        call.operator: {name for name, _ in call.facts} - {n for n, _ in next(iter(shown))}
        for call in calls
        if (shown := seen.facts[call.operator])
    }
    assert {operator: names for operator, names in hidden.items() if names} == {
        "attend": {"ratio"},
        "attend_output": {"ratio"},
        "dispatch": {"experts"},
        "index_scores": {"ratio"},
        "ngram_rows": {"dtype"},
        "route": {"dtype"},
        "top": {"block"},
    }


@cases
def test_calls_are_distinct(numerics: Numerics, dtype: str) -> None:
    calls, _ = run(numerics, dtype)
    assert len(set(calls)) == len(calls)


@cases
def test_every_call_states_its_rows(numerics: Numerics, dtype: str) -> None:
    calls, _ = run(numerics, dtype)
    heads = {"logits", "process", "sample", "top_logprobs", "copy"}
    for call in calls:
        bound = SEQUENCES if call.operator in heads or call.step == "logits" else ROWS
        assert dict(call.ranges)["rows"] == (1, bound), str(call)


def operators_in(step: str) -> set[str]:
    """Operators that a step's default body calls."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(Contract, step))))
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        function.attr
        for function in called
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self"
    }


@cases
def test_inner_calls_are_those_of_the_steps_body(numerics: Numerics, dtype: str) -> None:
    calls, _ = run(numerics, dtype)
    steps = {call.operator for call in calls if OPERATORS[call.operator] == "step"}
    for step in steps:
        inner = {call.operator for call in calls if call.step == step}
        assert inner == operators_in(step), step
    assert {call.step for call in calls} - {None} == steps


def test_released_matmuls() -> None:
    calls = model_calls(release(), Numerics.INFER, "bf16", LIMITS)
    names = {"inputs", "outputs", "weight"}
    shapes = {tuple(value for _, value in facts) for facts in listed(calls, "linear", names)}
    assert shapes == {
        (5120, 1280, "fp8"),  # wq_a
        (1280, 32768, "fp8"),  # wq_b
        (5120, 512, "fp8"),  # wkv
        (8192, 5120, "fp8"),  # wo_b
        (5120, 512, "bf16"),  # compressor
        (512, 128, "bf16"),  # index keys
        (1280, 4096, "fp8"),  # index queries
        (5120, 32, "bf16"),  # index head weights
        (6144, 25600, "fp8"),  # Engram
        (5120, 384, "bf16"),  # router
        (5120, 2304, "fp8"),  # shared expert, up and gate
        (2304, 5120, "fp8"),  # shared expert, down
        (5120, 129280, "bf16"),  # head
    }
    assert listed(calls, "grouped_linear", {"groups", "inputs", "outputs"}) == {
        (("groups", 8), ("inputs", 4096), ("outputs", 1024))
    }


@pytest.mark.parametrize("numerics", list(Numerics))
def test_quantised_inputs_of_a_numeric_mode(numerics: Numerics) -> None:
    calls = model_calls(release(), numerics, "bf16", LIMITS)
    quantised = {
        (call.fact("inputs"), call.step)
        for call in calls
        if call.operator in ("linear", "grouped_linear") and call.fact("scheme") is not None
    }
    engram = {(6144, "engram")}
    infer = {
        (5120, "project"),
        (1280, "project"),
        (4096, "attend_output"),
        (8192, "attend_output"),
        (1280, "select"),
        (5120, "shared_mlp"),
        (2304, "shared_mlp"),
    }
    assert quantised == (engram | infer if numerics is Numerics.INFER else engram)


def test_unquantised_checkpoint_has_no_quantised_weights() -> None:
    published = released_config()
    del published["quantization_config"]
    calls = model_calls(ModelConfig.from_dict(published), Numerics.REF, "bf16", LIMITS)
    facts = [dict(call.facts) for call in calls]
    assert {one["weight"] for one in facts if "weight" in one} == {"bf16"}
    assert {one["scheme"] for one in facts if "scheme" in one} == {None, "fp4-ue8m0-32"}


def test_model_without_compressed_layers_or_engram() -> None:
    published = released_config()
    text = published["text_config"]
    text["compress_ratios"] = [0] * 43
    for key in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids"):
        text[key] = []
    text["engram_num_embeddings"] = []
    text["candidate_source_layer_id"] = None
    calls = model_calls(ModelConfig.from_dict(published), Numerics.REF, "bf16", LIMITS)
    operators = {call.operator for call in calls}
    assert not operators & {"select", "update_context", "engram", "gather", "compress", "top"}
    assert {call.fact("format") for call in calls if call.operator == "store"} == {"window"}


def test_unquantised_entries_show_in_the_calls_that_meet_them() -> None:
    plain = set(model_calls(release(), Numerics.INFER, "bf16", LIMITS))
    other = set(model_calls(release(), Numerics.INFER, "bf16", LIMITS, "bf16"))
    changed = {"store", "norm_rope_store", "update_context", "select", "index_scores", "attend"}
    assert {call.operator for call in plain ^ other} == {*changed, "attend_output"}
    formats = {dict(call.facts)["format"] for call in other if call.operator == "store"}
    assert formats == {"window", "main-bf16", "index-bf16"}


STORED = json.loads((stored_calls.STORED / "models.json").read_text(encoding="utf-8"))
RENEW = "python tests/model/stored_calls.py stores them anew, where the change is meant"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config"), list(stored_calls.configs()))
def test_calls_of_known_models_are_the_stored_ones(name: str, config: ModelConfig) -> None:
    assert stored_calls.model_digests(config) == STORED[name], RENEW


def test_stored_models_are_the_known_ones() -> None:
    assert set(STORED) == {name for name, _ in stored_calls.configs()}


def test_calls_of_the_bundled_model_are_the_stored_ones() -> None:
    stored = (stored_calls.STORED / "bundled.txt").read_text(encoding="utf-8").splitlines()
    assert stored_calls.bundled_lines() == stored, RENEW


def test_listing_the_calls_of_the_released_model_is_quick() -> None:
    started = time.perf_counter()
    model_calls(release(), Numerics.INFER, "bf16", LIMITS)
    assert time.perf_counter() - started < 1
