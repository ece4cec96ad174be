"""The cache and attention suites: the reference passes, other sums pass, inputs can be repeated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import check_case
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import generator_of
from deepinfer.conformance.trees import tensors
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants.double_sums import DoubleSums

PRIMITIVES = ("store", "load", "copy", "export", "import_", "compress", "index_scores", "top")
PRIMITIVES += ("best_blocks", "attend")
STEPS = ("norm_rope_store", "update_context", "select", "attend_output")
SUMMED = ("compress", "index_scores", "attend", *STEPS)


def some(operator: str, step: int) -> Iterator[Case]:
    return iter(list(SUITES[operator].grid(Tier.QUICK))[::step])


@pytest.mark.parametrize("operator", [*PRIMITIVES, *STEPS])
def test_the_reference_passes_and_an_oracle_judges_it(operator: str) -> None:
    subject, suite = Subject.of("reference", ReferenceBackend("cpu")), SUITES[operator]
    for case in some(operator, 41):
        verdict = check_case(case, suite, subject, thorough=True)
        assert verdict.passed, str(verdict)
        assert suite.oracle(case, suite.inputs(case, generator_of(case))) is not None


@pytest.mark.slow
@pytest.mark.parametrize("operator", SUMMED)
def test_other_sums_pass(operator: str) -> None:
    subject = Subject.of("other", DoubleSums("cpu"))
    for case in some(operator, 23):
        verdict = check_case(case, SUITES[operator], subject)
        assert verdict.passed, str(verdict)


@pytest.mark.parametrize("operator", [*PRIMITIVES, *STEPS])
def test_ids_repeat_their_inputs(operator: str) -> None:
    suite = SUITES[operator]
    cases = list(suite.grid(Tier.FULL))
    assert len({case.id for case in cases}) == len(cases)
    for case in cases[::29]:
        if case.tier is not Tier.QUICK:
            continue
        again = Case.parse(case.id)
        assert again == case
        first, second = (suite.inputs(c, generator_of(c)) for c in (case, again))
        for (name, left), (_, right) in zip(tensors(first), tensors(second), strict=True):
            assert torch.equal(left.view(torch.uint8), right.view(torch.uint8)), name
