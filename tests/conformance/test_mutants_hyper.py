"""Every fault on the residual streams is caught by a quick case of the operator it spoils."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Failure
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants import hyper as mutants
from tests.conformance.mutants.catching import assert_caught, mutants_of

CAUGHT = [
    # mutant, operator, failure
    (mutants.SinkhornFewer, "mix", Failure.NUMBERS),
    (mutants.SinkhornEndsWithRows, "mix", Failure.NUMBERS),
    (mutants.CombTransposed, "mix", Failure.NUMBERS),
    (mutants.PostNotDoubled, "mix", Failure.NUMBERS),
    (mutants.PreWithoutEps, "mix", Failure.NUMBERS),
    (mutants.ScaleOfPre, "mix", Failure.NUMBERS),
    (mutants.BaseUnused, "mix", Failure.NUMBERS),
    (mutants.RmsWithUsualEps, "mix", Failure.NUMBERS),
    (mutants.MixInBf16, "mix", Failure.NUMBERS),
    (mutants.StreamMajorLost, "mix", Failure.NUMBERS),
    (mutants.LastStreamLost, "collapse", Failure.NUMBERS),
    (mutants.SumInBf16, "collapse", Failure.NUMBERS),
    (mutants.NanSpreads, "collapse", Failure.NAN),
    (mutants.CombReadBackwards, "expand", Failure.NUMBERS),
    (mutants.PostOfFirst, "expand", Failure.NUMBERS),
    (mutants.StreamsInPlace, "expand", Failure.WRITE),
    (mutants.PreOfSameSite, "enter", Failure.NUMBERS),
    (mutants.StepNotQuantised, "enter", Failure.DTYPE),
    (mutants.PostNotDoubled, "enter", Failure.NUMBERS),
    (mutants.PreOfSameSite, "advance", Failure.NUMBERS),
    (mutants.MixOfOldStreams, "advance", Failure.NUMBERS),
    (mutants.SinkhornFewer, "advance", Failure.NUMBERS),
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
