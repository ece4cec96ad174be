"""Every mutant of the attention family is caught by a quick case of the operator it spoils."""

from __future__ import annotations

import pytest

from deepinfer.conformance.case import Failure
from tests.conformance.mutants import attention as mutants
from tests.conformance.mutants.attention import ReferenceBackend
from tests.conformance.mutants.catching import assert_caught

CAUGHT = [
    (mutants.KeysReadInterleaved, "index_scores", Failure.NAN),
    (mutants.ReluMissing, "index_scores", Failure.NUMBERS),
    (mutants.CausalOneLate, "index_scores", Failure.NAN),
    (mutants.CausalOneEarly, "index_scores", Failure.NAN),
    (mutants.ScaleDefaultedToOne, "index_scores", Failure.NUMBERS),
    (mutants.TermsNotRounded, "index_scores", Failure.NUMBERS),
    (mutants.LastBlockDropped, "best_blocks", Failure.NUMBERS),
    (mutants.BlocksHigherOfEqual, "best_blocks", Failure.NUMBERS),
    (mutants.TopHigherOfEqual, "top", Failure.NUMBERS),
    (mutants.TopKFewer, "top", Failure.NUMBERS),
    (mutants.CandidatesIgnored, "top", Failure.NUMBERS),
    (mutants.NanSelected, "top", Failure.NUMBERS),
    (mutants.ReluMissing, "select", Failure.NUMBERS),
    (mutants.TopKFewer, "select", Failure.NUMBERS),
    (mutants.TopHigherOfEqual, "select", Failure.NUMBERS),
    (mutants.CandidatesIgnored, "select", Failure.NUMBERS),
    (mutants.LastBlockDropped, "select", Failure.NUMBERS),
    (mutants.QueriesNotRotated, "select", Failure.NUMBERS),
    (mutants.SinkIgnored, "attend", Failure.NUMBERS),
    (mutants.SinkTwiceScaled, "attend", Failure.NUMBERS),
    (mutants.WindowShort, "attend", Failure.NUMBERS),
    (mutants.WindowLong, "attend", Failure.NUMBERS),
    (mutants.MinusOneAttended, "attend", Failure.NUMBERS),
    (mutants.OtherSequence, "attend", Failure.NUMBERS),
    (mutants.NanSpreads, "attend", Failure.NAN),
    (mutants.BatchDependentSum, "attend", Failure.BATCH),
    (mutants.RunToRun, "attend", Failure.REPEAT),
    (mutants.SinkIgnored, "attend_output", Failure.NUMBERS),
    (mutants.WindowShort, "attend_output", Failure.NUMBERS),
    (mutants.WindowLong, "attend_output", Failure.NUMBERS),
    (mutants.OutputNotRotatedBack, "attend_output", Failure.NUMBERS),
]


@pytest.mark.parametrize(
    ("mutant", "operator", "failure"),
    CAUGHT,
    ids=[f"mutant-{mutant.__name__}-{operator}" for mutant, operator, _ in CAUGHT],
)
def test_caught(mutant: type[ReferenceBackend], operator: str, failure: Failure) -> None:
    assert_caught(mutant, operator, failure)
