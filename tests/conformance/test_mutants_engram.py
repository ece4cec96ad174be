"""Every fault of the n-gram memory is caught by a quick case of the operator it spoils."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Failure
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants import engram as mutants
from tests.conformance.mutants.catching import assert_caught, mutants_of

CAUGHT = [
    # mutant, operator, failure
    (mutants.HashOfNextHead, "ngram_rows", Failure.NUMBERS),
    (mutants.HistoryOfRowsAbove, "ngram_rows", Failure.NUMBERS),
    (mutants.GapDoesNotBlock, "ngram_rows", Failure.NUMBERS),
    (mutants.PadIsZero, "ngram_rows", Failure.NUMBERS),
    (mutants.ShortMultipliers, "ngram_rows", Failure.NUMBERS),
    (mutants.MinusOneWraps, "gather", Failure.RAISES),
    (mutants.LastScaleDefaulted, "gather", Failure.NUMBERS),
    (mutants.ColumnsReversed, "gather", Failure.NUMBERS),
    (mutants.RootUnsigned, "inject", Failure.NUMBERS),
    (mutants.RootMissing, "inject", Failure.NUMBERS),
    (mutants.RootWithoutFloor, "inject", Failure.NUMBERS),
    (mutants.KeyWeightUnused, "inject", Failure.NUMBERS),
    (mutants.UsualEps, "inject", Failure.NUMBERS),
    (mutants.BlockedIgnored, "inject", Failure.NUMBERS),
    (mutants.HashOfNextHead, "engram", Failure.NUMBERS),
    (mutants.LastScaleDefaulted, "engram", Failure.NUMBERS),
    (mutants.EngramSkipped, "engram", Failure.NUMBERS),
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
