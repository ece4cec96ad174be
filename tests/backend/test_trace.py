"""Tracing: which calls are recorded, and with which facts; shapes, against the reference."""

from __future__ import annotations

import pytest
import torch

from deepinfer.backend import Activation, CallSpec, Group, Numerics, Routing
from deepinfer.backend.base import DECLARATIONS, OPERATORS
from deepinfer.backend.shapes import Shapes, ShapeSource, empty
from deepinfer.backend.trace import Tracer, shown_facts
from deepinfer.conformance.case import Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.suite import OperatorSuite, generator_of
from deepinfer.conformance.trees import tensors
from deepinfer.conformance.world import World
from deepinfer.formats import Scheme
from deepinfer_reference.backend import ReferenceBackend

RANGES = {"rows": (1, 48), "sequences": (1, 2), "length": (1, 64)}
X = empty((1, 64), torch.bfloat16)


def tracer(**inherited: str | int) -> Tracer:
    return Tracer(RANGES, inherited)


def test_a_step_stands_before_the_calls_inside_it() -> None:
    traced = tracer()
    traced.norm_quantise(X, X[0], 1e-6, Scheme.FP8_BLOCK32)
    facts = {"width": 64, "dtype": "bf16"}
    scheme = {**facts, "scheme": "fp8-ue8m0-32"}
    rows = {"rows": (1, 48)}
    assert traced.calls == [
        CallSpec.of("norm_quantise", scheme, rows),
        CallSpec.of("rms_norm", {**facts, "eps": 1e-6}, rows, "norm_quantise"),
        CallSpec.of("quantise", scheme, rows, "norm_quantise"),
    ]


def test_a_call_is_recorded_once() -> None:
    traced = tracer()
    for _ in range(2):
        traced.rms_norm(X, X[0], 1e-6)
    assert len(traced.calls) == 1


def test_arguments_by_name_are_those_by_place() -> None:
    traced = tracer()
    traced.rms_norm(X, X[0], 1e-6)
    traced.rms_norm(x=X, weight=X[0], eps=1e-6)
    assert len(traced.calls) == 1


def test_rows_of_sequences_have_a_range_of_their_own() -> None:
    traced = tracer()
    traced.top_logprobs(empty((1, 10), torch.float32), 3)
    assert traced.calls[0].ranges == (("rows", (1, 2)),)


def test_facts_that_arguments_do_not_show_are_inherited() -> None:
    ids = empty((1, 3), torch.int32)
    traced = tracer(experts=8)
    traced.dispatch(Activation(X), Routing(ids, ids), Group())
    assert traced.calls[0].fact("experts") == 8


def test_an_operator_that_nobody_lists_shows_no_facts() -> None:
    with pytest.raises(ValueError, match="operator 'pack_vector' declares no facts"):
        shown_facts("pack_vector", (None,))


def test_operators_without_facts_are_packers_and_what_no_model_calls_yet() -> None:
    without = {name for name, one in DECLARATIONS.items() if one.facts is None}
    assert without == {
        *(name for name in OPERATORS if name.startswith("pack_")),
        "verify",
        "residual",
        "lengths_after",
        "next_inputs",
        "next_history",
        "split_budget",
        "draft_inputs",
        "confidence",
    }


def test_every_operator_with_facts_has_a_shape_or_a_body() -> None:
    shaped = {
        name for name in OPERATORS if getattr(Shapes, name) is not getattr(Shapes.__base__, name)
    }
    primitives = {
        name
        for name, one in DECLARATIONS.items()
        if one.kind == "primitive" and (one.facts is not None or name.startswith("pack_"))
    }
    assert shaped == primitives


def test_a_source_of_a_shape_cannot_be_read() -> None:
    source = ShapeSource("w", "F8_E4M3", (4, 32))
    assert (source.nbytes, source.rows(1, 3).shape) == (128, (2, 32))
    for take in (source.read, source.map):
        with pytest.raises(ValueError, match="w: only its shape is known"):
            take()


SHAPED = [
    suite
    for name, suite in SUITES.items()
    if DECLARATIONS.get(name) is not None and not name.startswith("pack_")
]


@pytest.mark.parametrize("suite", SHAPED, ids=[suite.operator for suite in SHAPED])
def test_shapes_are_those_of_the_reference(suite: OperatorSuite) -> None:
    """Of the values; the quantised half is left out, where the scheme says that there is one."""
    for case in list(suite.grid(Tier.QUICK))[:40]:
        found = []
        for operators in (Shapes(), ReferenceBackend("cpu")):
            placed = World(operators).place(suite.inputs(case, generator_of(case)))
            result = suite.run(operators, placed)
            found.append(
                {
                    path: (tuple(tensor.shape), tensor.dtype)
                    for path, tensor in tensors(result)
                    if "quantised" not in path
                }
            )
        assert found[0] == found[1], case.id


@pytest.mark.parametrize("numerics", list(Numerics))
def test_schemes_of_shapes_are_those_of_the_reference(numerics: Numerics) -> None:
    gate = torch.ones(1, 64)
    for operators in (Shapes(), ReferenceBackend("cpu")):
        assert operators.swiglu(gate, gate, 1.0, None, numerics).scheme == (
            Scheme.FP8_BLOCK32 if numerics is Numerics.INFER else None
        )
