"""The calls of one part of a model, as the model itself would list them, for steps of a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from deepinfer.backend import CallSpec
from deepinfer.config import LayerPlan, ModelConfig
from deepinfer.conformance.case import Case
from deepinfer.conformance.suite import numerics_of
from deepinfer.model.calls import CallLimits, ModelCalls

EPS = 1e-6
THETA = 160000.0
FIELDS: Mapping[str, object] = {
    "rms_norm_eps": EPS,
    "candidate_block_size": 8,
    "candidate_topk_blocks": 0,
}
"""Fields of a text config that a part may read although a case does not vary them."""


def part_calls(
    case: Case,
    part: str,
    text: Mapping[str, object],
    plan: Mapping[str, object],
    *,
    rows: int,
    quantised: bool = True,
) -> list[CallSpec]:
    """Calls of `ModelCalls.<part>(plan)` for a config with these fields, for the case's operator.

    That operator's own call stands first and is the model's; the others are made inside it.
    quantised: do the published matrices of the model have block scales?
    """
    config = SimpleNamespace(
        text=SimpleNamespace(**{**FIELDS, **text}), quantization=object() if quantised else None
    )
    limits = CallLimits(max(1, rows), max(1, rows), max(1, case.size("length")))
    calls = ModelCalls(cast(ModelConfig, config), numerics_of(case), case.dtype, limits)
    listed = list(getattr(calls, part)(cast(LayerPlan, SimpleNamespace(**plan))))
    own = next(call for call in listed if call.operator == case.operator)
    return [
        replace(own, step=None),
        *(
            call
            for call in listed
            if call.step == case.operator or call.step in _inside(listed, case.operator)
        ),
    ]


def _inside(calls: list[CallSpec], operator: str) -> set[str]:
    """Steps that a step calls."""
    return {call.operator for call in calls if call.step == operator}
