"""What is no right answer is no pass, and an outcome of its case: types, devices, views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.conformance.case import Outcome
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject
from deepinfer_reference.backend import ReferenceBackend

CASE = "rms_norm[eps=1e-06,rows=3,width=64,dtype=bf16,values=normal,seed=0]"
Change = Callable[[Tensor, Tensor], Any]


class Lazy:
    """Becomes a tensor when somebody looks."""

    def __init__(self, made: Tensor) -> None:
        self.made = made

    @classmethod
    def __torch_function__(cls, *arguments: Any, **more: Any) -> Any:
        raise RuntimeError("nobody looked")


def changed(change: Change) -> Subject:
    """A backend whose norm returns something else: a function of its input and the right answer."""

    class Odd(ReferenceBackend):
        def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
            made: Tensor = change(x, super().rms_norm(x, weight, eps))
            return made

    return Subject.of("odd", Odd("cpu"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x, right: None, id="none"),
        pytest.param(lambda x, right: (row for row in right), id="generator"),
        pytest.param(lambda x, right: [right], id="list"),
        pytest.param(lambda x, right: right.tolist(), id="numbers"),
        pytest.param(
            lambda x, right: right.numpy(force=True) if right.dtype == torch.float32 else 3.0,
            id="numpy",
        ),
        pytest.param(lambda x, right: right.to("meta"), id="meta"),
        pytest.param(lambda x, right: right.to_sparse(), id="sparse"),
        pytest.param(lambda x, right: right.to(torch.complex64), id="complex"),
        pytest.param(lambda x, right: Lazy(right), id="lazy"),
        pytest.param(lambda x, right: x, id="input"),
        pytest.param(lambda x, right: x.copy_(right), id="input-overwritten"),
        pytest.param(lambda x, right: x.as_strided((3, 64), (1, 1)), id="view-of-input"),
    ],
)
def test_no_right_answer_passes_nowhere(change: Change) -> None:
    found = by_id(CASE).run(changed(change))
    assert found.outcome in (Outcome.FAILED, Outcome.ERROR), str(found)
    assert found.message


def test_a_backend_may_not_end_the_run() -> None:
    """Without a worker too, where ending would read as success."""

    def leave(x: Tensor, right: Tensor) -> Any:
        raise SystemExit(0)

    found = by_id(CASE).run(changed(leave))
    assert found.outcome is Outcome.ERROR
    assert "SystemExit: 0" in found.message


def test_a_right_answer_in_an_unusual_form_passes() -> None:
    """Not contiguous, of a gradient's graph, inside a larger tensor."""
    for change in (
        lambda x, right: right.t().contiguous().t(),
        lambda x, right: right.clone().requires_grad_(),
        lambda x, right: torch.cat([right, right])[len(right) :],
    ):
        found = by_id(CASE).run(changed(change))
        assert found.passed, str(found)
