"""Backends that raise, return NaN or another shape, or do more in one step: never a pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Backend, Contract, PackedLinear, Selection
from deepinfer.conformance.golden.report import GoldenReport
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.small_golden import MODEL, SmallGolden, failures

LOGITS, GREEDY, LAYERS = (
    "logits.safetensors",
    "greedy.safetensors",
    "intermediates.fp32.safetensors",
)


class NanLogits(ReferenceBackend):
    """The head returns NaN at the highest logit of every row, and is right elsewhere."""

    def logits(self, x: Tensor, norm: Tensor, eps: float, head: PackedLinear) -> Tensor:
        logits = super().logits(x, norm, eps, head)
        return logits.scatter(1, logits.argmax(1, keepdim=True), float("nan"))


class NanEverywhere(ReferenceBackend):
    """Every norm returns NaN."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.full_like(x, float("nan"))


class Raising(ReferenceBackend):
    """One operator raises."""

    def attend(self, *arguments: Any) -> Tensor:
        raise RuntimeError("out of luck")


class NotCreated(ReferenceBackend):
    """The backend cannot be built."""

    def __init__(self, device: str) -> None:
        raise OSError("no such device")


class FewerRows(ReferenceBackend):
    """One operator returns a row fewer."""

    def combine(self, *arguments: Any) -> Tensor:
        return super().combine(*arguments)[:1]


class DoubleSelection(ReferenceBackend):
    """Unused places of a selection repeat its last entry."""

    def top(self, *arguments: Any) -> Tensor:
        kept = super().top(*arguments)
        return torch.where(kept < 0, kept.amax(1, keepdim=True), kept)


class UnorderedSelection(ReferenceBackend):
    """Selected entries come in descending order, the absent ones first."""

    def top(self, *arguments: Any) -> Tensor:
        return super().top(*arguments).flip(1)


class EqualScores(ReferenceBackend):
    """All index scores are equal, so that any selection could be called a tie."""

    def index_scores(self, *arguments: Any) -> Tensor:
        scores = super().index_scores(*arguments)
        return torch.where(scores > float("-inf"), torch.zeros_like(scores), scores)


class NativeSteps(ReferenceBackend):
    """Steps done at once, rightly; nothing can be seen inside."""

    def select(self, *arguments: Any) -> Selection:
        return Contract.select(self, *arguments)

    def mixture(self, *arguments: Any) -> Tensor:
        return Contract.mixture(self, *arguments)

    def attend_output(self, *arguments: Any) -> Tensor:
        return Contract.attend_output(self, *arguments)


def run(golden: SmallGolden, backend: type[Backend], compute: str = "fp32") -> GoldenReport:
    """Operator vectors, logits and layers of short prompts, and a greedy continuation."""
    golden.link("ops.safetensors")
    golden.part(LOGITS, ["p1", "p2", "p7"])
    golden.part(GREEDY, ["p1", "p2"])
    golden.part(f"intermediates.{compute}.safetensors", ["p7"])
    return golden.run(backend, (compute,))


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_nan_logits_pass_nowhere(with_model: SmallGolden, compute: str) -> None:
    report = run(with_model, NanLogits, compute)
    wrong = failures(report)
    assert {f"{MODEL}/logits/{prompt}" for prompt in ("p1", "p2", "p7")} <= set(wrong)
    assert {f"{MODEL}/greedy/{prompt}" for prompt in ("p1", "p2")} <= set(wrong)


@pytest.mark.slow
def test_nan_is_never_the_one_exception(with_model: SmallGolden) -> None:
    report = run(with_model, NanEverywhere)
    assert [item.name for item in report.items if item.outcome == "allowed"] == []
    nan = [
        item.outcome
        for item in report.items
        for measure in item.measures
        if str(measure.value) == "nan"
    ]
    assert len(nan) > 100
    assert set(nan) == {"failed"}


@pytest.mark.slow
def test_an_operator_that_raises_is_a_failed_item(with_model: SmallGolden) -> None:
    report = run(with_model, Raising)
    notes = {item.name: item.note for item in report.items if item.outcome == "failed"}
    assert {f"{MODEL}/layers/p7/L0", f"{MODEL}/logits/p2", "ops/attn/r1.full"} <= notes.keys()
    assert "accepted operator 'attend' and then raised RuntimeError: out of luck" in "".join(
        notes.values()
    )
    passed = {item.name for item in report.items if item.outcome == "passed"}
    assert {"ops/rmsnorm", f"{MODEL}/layers/p7/final_hidden"} <= passed
    assert report.exit_code == 1


def test_a_backend_that_cannot_be_built_fails(with_model: SmallGolden) -> None:
    report = run(with_model, NotCreated)
    notes = [item.note for item in report.items if item.outcome == "failed"]
    assert len(notes) == 2
    assert all("raised in deepinfer_create: OSError: no such device" in note for note in notes)
    assert report.exit_code == 1


@pytest.mark.slow
def test_rows_that_are_missing_fail(with_model: SmallGolden) -> None:
    report = run(with_model, FewerRows)
    wrong = set(failures(report))
    assert f"{MODEL}/layers/p7/L0/ffn_out" in wrong or f"{MODEL}/layers/p7/L0" in wrong
    assert {f"{MODEL}/logits/{prompt}" for prompt in ("p2", "p7")} <= wrong


@pytest.mark.slow
@pytest.mark.parametrize("backend", [DoubleSelection, UnorderedSelection])
def test_selections_that_break_the_contract_fail(
    with_model: SmallGolden, backend: type[Backend]
) -> None:
    report = run(with_model, backend)
    wrong = set(failures(report))
    assert {"ops/attn/r1.full.topk_indices", f"{MODEL}/layers/p7/L2/topk_indices"} <= wrong


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_a_backends_own_scores_explain_nothing(with_model: SmallGolden, compute: str) -> None:
    wrong = set(failures(run(with_model, EqualScores, compute)))
    assert {"ops/attn/r1.full.index_scores", "ops/attn/r1.full.topk_indices"} <= wrong
    assert "ops/attn/r2.reindex.topk_indices" in wrong


@pytest.mark.slow
def test_what_a_native_step_hides_is_listed(with_model: SmallGolden) -> None:
    report = run(with_model, NativeSteps)
    hidden = {item.name for item in report.items if item.outcome == "not covered"}
    assert {
        f"{MODEL}/layers/p7/L2/index_scores",
        f"{MODEL}/layers/p7/L2/index_q",
        f"{MODEL}/layers/p7/L0/router_indices",
        "ops/attn.r1.full.fp32.attended",
        "ops/attn.r1.full.fp32.index_scores",
    } <= hidden
    assert {item.outcome for item in report.items} == {"passed", "not covered"}
    passed = {item.name for item in report.items if item.outcome == "passed"}
    assert {
        f"{MODEL}/layers/p7/L2/topk_indices",
        f"{MODEL}/layers/p7/L0/ffn_out",
        "ops/attn/r1.full.topk_indices",
        "ops/attn/r1.full.out",
    } <= passed
    assert report.exit_code == 1


def test_a_fallback_fails_where_it_is_forbidden(with_model: SmallGolden) -> None:
    with_model.part(LOGITS, ["p1"])
    report = with_model.run(Backend, strict=True)
    (note,) = [item.note for item in report.items if item.outcome == "failed"]
    assert "forbids a fallback" in note
    assert with_model.run(Backend).exit_code == 0
