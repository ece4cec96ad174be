"""Every mutant of the cache family is caught by a quick case of the operator that it spoils."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Failure
from tests.conformance.mutants import cache as mutants
from tests.conformance.mutants.cache import ReferenceBackend
from tests.conformance.mutants.catching import assert_caught

CAUGHT = [
    (mutants.NibblesSwapped, "store", Failure.NUMBERS),
    (mutants.ScaleOfNextGroup, "store", Failure.NUMBERS),
    (mutants.MinusOneStored, "store", Failure.WRITE),
    (mutants.PastTheLastEntry, "store", Failure.WRITE),
    (mutants.FirstPageIgnored, "store", Failure.NUMBERS),
    (mutants.ScaleDefaultedToOne, "load", Failure.NUMBERS),
    (mutants.PlanarReadInterleaved, "load", Failure.NUMBERS),
    (mutants.MinusOneLoaded, "load", Failure.NUMBERS),
    (mutants.CopyReversed, "copy", Failure.WRITE),
    (mutants.ImportOverPadding, "import_", Failure.WRITE),
    (mutants.MembersNotKept, "compress", Failure.NUMBERS),
    (mutants.PendingForgotten, "compress", Failure.WRITE),
    (mutants.GatesIgnored, "compress", Failure.NUMBERS),
    (mutants.GatesIgnored, "update_context", Failure.NUMBERS),
    (mutants.EntryOnePositionLate, "update_context", Failure.NUMBERS),
    (mutants.MinusOneStored, "update_context", Failure.WRITE),
    (mutants.NormWeightUnused, "norm_rope_store", Failure.NUMBERS),
    (mutants.HalvesPaired, "norm_rope_store", Failure.NUMBERS),
    (mutants.NibblesSwapped, "norm_rope_store", Failure.NUMBERS),
]


@pytest.mark.parametrize(
    ("mutant", "operator", "failure"),
    CAUGHT,
    ids=[f"mutant-{mutant.__name__}-{operator}" for mutant, operator, _ in CAUGHT],
)
def test_caught(mutant: type[ReferenceBackend], operator: str, failure: Failure) -> None:
    assert_caught(mutant, operator, failure)
