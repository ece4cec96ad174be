"""Every fault of the dense family is caught by a quick case of the operator that it spoils."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Failure
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants import dense as mutants
from tests.conformance.mutants.catching import assert_caught, mutants_of

CAUGHT = [
    # mutant, operator, failure
    (mutants.NibblesSwapped, "pack_linear", Failure.NUMBERS),
    (mutants.NibblesSwapped, "linear", Failure.NUMBERS),
    (mutants.ScaleOfNextBlock, "pack_linear", Failure.NUMBERS),
    (mutants.ScaleOfNextBlock, "grouped_linear", Failure.NUMBERS),
    (mutants.LastScaleDefaulted, "pack_linear", Failure.NUMBERS),
    (mutants.RoundedAtLoad, "pack_linear", Failure.NUMBERS),
    (mutants.RoundedAtLoad, "linear", Failure.NUMBERS),
    (mutants.RoundedAtLoad, "logits", Failure.NUMBERS),
    (mutants.MinusOneWraps, "embed", Failure.RAISES),
    (mutants.ValuesConsumed, "linear", Failure.NUMBERS),
    (mutants.QuantisedHalfConsumed, "linear", Failure.NUMBERS),
    (mutants.LastColumnLost, "linear", Failure.NUMBERS),
    (mutants.GroupOfNeighbour, "grouped_linear", Failure.NUMBERS),
    (mutants.SumOfBatch, "linear", Failure.BATCH),
    (mutants.SumOfRun, "linear", Failure.REPEAT),
    (mutants.NormWeightUnused, "rms_norm", Failure.NUMBERS),
    (mutants.UsualEps, "rms_norm", Failure.NUMBERS),
    (mutants.NanSpreads, "rms_norm", Failure.NAN),
    (mutants.NormInPlace, "rms_norm", Failure.WRITE),
    (mutants.WrittenPastTheEnd, "rms_norm", Failure.WRITE),
    (mutants.FloorMissing, "quantise", Failure.NUMBERS),
    (mutants.ScaleRoundedDown, "quantise", Failure.NUMBERS),
    (mutants.TiesAway, "quantise", Failure.NUMBERS),
    (mutants.QuantisedBeforeRounding, "norm_quantise", Failure.NUMBERS),
    (mutants.NanSpreads, "norm_quantise", Failure.NAN),
    (mutants.HalvesPaired, "rope", Failure.NUMBERS),
    (mutants.YarnIgnored, "rope", Failure.NUMBERS),
    (mutants.InverseSkipped, "rope", Failure.NUMBERS),
    (mutants.AngleNotRounded, "rope", Failure.NUMBERS),
    (mutants.YarnIgnored, "project", Failure.NUMBERS),
    (mutants.KvNormUnused, "project", Failure.NUMBERS),
    (mutants.LatentQuantisedInRef, "project", Failure.NUMBERS),
    (mutants.HiddenNotNormed, "logits", Failure.NUMBERS),
]


@pytest.mark.parametrize(
    ("mutant", "operator", "failure"),
    CAUGHT,
    ids=[f"mutant-{mutant.__name__}-{operator}" for mutant, operator, _ in CAUGHT],
)
def test_mutant_is_caught(mutant: type[ReferenceBackend], operator: str, failure: Failure) -> None:
    assert_caught(mutant, operator, failure)


def test_every_mutant_is_tried() -> None:
    known = mutants_of(mutants)
    assert known == {mutant for mutant, _, _ in CAUGHT}
