"""What is checked beside the numbers of a case: NaN in either half of an activation, repeats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Activation
from deepinfer.conformance.case import Failure, Outcome
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject
from deepinfer.formats import dequantise
from deepinfer_reference.backend import ReferenceBackend

LINEAR = "linear[inputs=64,out=bf16,outputs=48,rows=5,scheme={},weight={},dtype=bf16,values=normal]"
NORM = "rms_norm[eps=1e-06,rows=5,width=64,dtype=bf16,values=normal]"


class NanOfCodesSpreads(ReferenceBackend):
    """A NaN among the codes of one row reaches all rows."""

    def linear(self, a: Activation, *rest: Any) -> Tensor:
        out = super().linear(a, *rest)
        if a.quantised is None or a.scheme is None:
            return out
        return out + 0 * dequantise(*a.quantised, a.scheme, torch.float32).sum().to(out.dtype)


class Forgetful(ReferenceBackend):
    """Every second norm is far off; its repeats are declared to differ."""

    nondeterministic = frozenset({"rms_norm"})
    calls = 0

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        self.calls += 1
        return super().rms_norm(x, weight, eps) * (1 if self.calls % 2 else 2)


@pytest.mark.parametrize("backend", [ReferenceBackend, NanOfCodesSpreads])
def test_a_row_of_nan_is_one_in_both_halves(backend: type[ReferenceBackend]) -> None:
    subject = Subject.of("chip", backend("cpu"))
    found = by_id(LINEAR.format("fp8-ue8m0-32", "fp8")).run(subject)
    right = backend is ReferenceBackend
    assert found.failure is (Failure.NONE if right else Failure.NAN), str(found)
    assert right or "rows beside the NaN of row 2" in found.message
    assert by_id(LINEAR.format(None, "bf16")).run(subject).passed


def test_a_repeat_keeps_the_limits_without_a_promise() -> None:
    found = by_id(NORM).run(Subject.of("chip", Forgetful("cpu")))
    assert (found.outcome, found.failure) == (Outcome.FAILED, Failure.NUMBERS)
    assert found.message.startswith("a repeat: out")
