"""Every fault of the experts is caught by a quick case, and the right backend passes it."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Failure
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants import experts as mutants
from tests.conformance.mutants.catching import assert_caught, first_failure, mutants_of

CAUGHT = [
    # mutant, operator, failure
    (mutants.BiasInWeights, "route", Failure.NUMBERS),
    (mutants.BiasNeverRead, "route", Failure.NUMBERS),
    (mutants.ImageBiasNeverRead, "route", Failure.NUMBERS),
    (mutants.ScaleOfWeightsMissing, "route", Failure.NUMBERS),
    (mutants.HigherExpertFirst, "route", Failure.NUMBERS),
    (mutants.ClampDropped, "swiglu", Failure.NUMBERS),
    (mutants.GateClampedBelow, "swiglu", Failure.NUMBERS),
    (mutants.QuantisedAfterRounding, "swiglu", Failure.NUMBERS),
    (mutants.ClampedInPlace, "swiglu", Failure.WRITE),
    (mutants.WrittenPastTheEnd, "swiglu", Failure.WRITE),
    (mutants.NanSpreads, "swiglu", Failure.NAN),
    (mutants.WeightAfterProjection, "expert_mlp", Failure.NUMBERS),
    (mutants.LastRowsOfExpertLost, "expert_mlp", Failure.NUMBERS),
    (mutants.SumOfBatch, "expert_mlp", Failure.BATCH),
    (mutants.SumOfRun, "expert_mlp", Failure.REPEAT),
    (mutants.InputQuantisedInRef, "expert_mlp", Failure.NUMBERS),
    (mutants.NibblesSwapped, "expert_mlp", Failure.NUMBERS),
    (mutants.ScaleOfNextBlock, "expert_mlp", Failure.NUMBERS),
    (mutants.LastScaleDefaulted, "expert_mlp", Failure.NUMBERS),
    (mutants.SharedUpNeverRead, "shared_mlp", Failure.NUMBERS),
    (mutants.SharedExpertMissing, "combine", Failure.NUMBERS),
    (mutants.SummedInOrderOfChoice, "combine", Failure.NUMBERS),
    (mutants.SumNotRounded, "combine", Failure.NUMBERS),
    (mutants.ImageBiasNeverRead, "mixture", Failure.NUMBERS),
    (mutants.SlotsWrap, "pack_experts", Failure.RAISES),
    (mutants.WritesNextSlot, "pack_experts", Failure.NUMBERS),
    (mutants.ImportForgetsDown, "pack_experts", Failure.NUMBERS),
]


@pytest.mark.parametrize(
    ("mutant", "operator", "failure"),
    CAUGHT,
    ids=[f"mutant-{mutant.__name__}-{operator}" for mutant, operator, _ in CAUGHT],
)
def test_mutant_is_caught(mutant: type[ReferenceBackend], operator: str, failure: Failure) -> None:
    assert_caught(mutant, operator, failure)


def test_mutant_rounding_inside_the_experts_shows_in_a_wide_row() -> None:
    """A fused MLP is not seen at its SwiGLU: its output must tell."""
    verdict = first_failure(
        mutants.QuantisedAfterRounding,
        ["expert_mlp"],
        among=lambda case: (case.numerics, case.fact("intermediate")) == ("infer", 2304),
    )
    assert verdict is not None
    assert verdict.failure is Failure.NUMBERS


def test_other_sums_pass() -> None:
    """Float64 sums, which change the last bits of float32 outputs and no other case."""
    changed = first_failure(
        mutants.OtherSums,
        ["expert_mlp"],
        among=lambda case: (case.dtype, case.numerics) == ("fp32", "ref"),
    )
    assert changed is None


def test_every_mutant_is_tried() -> None:
    known = mutants_of(mutants, mutants.OtherSums)
    assert known == {mutant for mutant, _, _ in CAUGHT}
