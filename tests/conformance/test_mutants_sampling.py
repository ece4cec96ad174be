"""Every fault of sampling and of the device's services is caught by a quick case."""

from __future__ import annotations

from types import ModuleType

import pytest

from deepinfer.conformance.case import Failure
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants import device, sampling
from tests.conformance.mutants.catching import assert_caught, first_failure, mutants_of

CAUGHT = [
    # mutant, operator tried, failure
    (sampling.TopPOneLate, "process", Failure.NUMBERS),
    (sampling.TopPStrict, "process", Failure.NUMBERS),
    (sampling.TopKBeforeTopP, "process", Failure.NUMBERS),
    (sampling.MinPAbsolute, "process", Failure.NUMBERS),
    (sampling.MinPNeverRead, "process", Failure.NUMBERS),
    (sampling.HigherTokenFirst, "process", Failure.NUMBERS),
    (sampling.NotRenormalised, "process", Failure.NUMBERS),
    (sampling.ProcessNanSpreads, "process", Failure.NAN),
    (sampling.PositionIgnored, "sample", Failure.NUMBERS),
    (sampling.PositionCut, "sample", Failure.NUMBERS),
    (sampling.SeedCut, "sample", Failure.NUMBERS),
    (sampling.PurposeIgnored, "sample", Failure.NUMBERS),
    (sampling.DrawDependsOnRow, "sample", Failure.NUMBERS),
    (sampling.MassesRounded, "sample", Failure.NUMBERS),
    (sampling.NanRowDraws, "sample", Failure.NUMBERS),
    (sampling.MaskBitsReversed, "mask", Failure.NUMBERS),
    (sampling.MaskSignBitLost, "mask", Failure.NUMBERS),
    (sampling.TopTiesReversed, "top_logprobs", Failure.NUMBERS),
    (device.SharesHostMemory, "device", Failure.NUMBERS),
    (device.WorkspaceOfAllNames, "device", Failure.NUMBERS),
    (device.WorkspaceNotKept, "device", Failure.NUMBERS),
    (device.CopyCutShort, "device", Failure.NUMBERS),
    (device.CopyIgnoresStrides, "device", Failure.NUMBERS),
    (device.MemoryOverfull, "device", Failure.NUMBERS),
    (device.PlanWritesBatch, "device", Failure.WRITE),
    (device.CaptureFreezesInputs, "device", Failure.NUMBERS),
]


@pytest.mark.parametrize(
    ("mutant", "operator", "failure"),
    CAUGHT,
    ids=[f"mutant-{mutant.__name__}" for mutant, _, _ in CAUGHT],
)
def test_mutant_is_caught(mutant: type[ReferenceBackend], operator: str, failure: Failure) -> None:
    assert_caught(mutant, operator, failure)


def test_a_second_implementation_passes() -> None:
    few = 2000
    failure = first_failure(
        sampling.OwnProcess, ["process"], among=lambda case: case.size("vocabulary") < few
    )
    assert failure is None


@pytest.mark.parametrize("module", [sampling, device])
def test_every_mutant_is_tried(module: ModuleType) -> None:
    known = mutants_of(module, sampling.OwnProcess)
    assert known == {mutant for mutant, _, _ in CAUGHT if mutant.__module__ == module.__name__}
