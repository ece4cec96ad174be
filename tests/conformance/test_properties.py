"""Properties: drawn cases of every operator, shrunk to the smallest that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Activation, Region
from deepinfer.conformance.case import Case, Failure, Outcome, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.check import check_case
from deepinfer.conformance.dump import dump_case
from deepinfer.conformance.properties import (
    checking,
    is_property,
    property_cases,
)
from deepinfer.conformance.registry import by_id, checks
from deepinfer.conformance.subject import Subject
from deepinfer.errors import UsageError
from deepinfer.formats import Quantised
from deepinfer_reference.backend import ReferenceBackend


def case_of(operator: str, name: str, tier: Tier = Tier.FULL) -> Case:
    """The property of an operator that a tier draws most cases for."""
    found = [c for c in property_cases(SUITES[operator], tier) if c.fact("property") == name]
    return found[-1]


def subject_of(backend: type[ReferenceBackend]) -> Subject:
    return Subject.of("mutant", backend("cpu"))


def test_every_operator_has_properties_that_paste_back() -> None:
    named = [check for check in checks(Tier.QUICK) if is_property(check.case)]
    assert {check.case.operator for check in named} == set(SUITES)
    for check in named:
        assert by_id(check.id) == check
    more = [check for check in checks(Tier.SOAK) if is_property(check.case)]
    drawn = dict.fromkeys(Tier, 0)
    for check in more:
        drawn[check.case.tier] += check.case.size("examples")
    per_property = {tier: total / len(named) for tier, total in drawn.items()}
    assert per_property == {Tier.QUICK: 4, Tier.FULL: 50, Tier.SOAK: 500}


class WideRows(ReferenceBackend):
    """Rows of 77 channels and more lose their last one: no width of the grid is just above."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = super().rms_norm(x, weight, eps)
        if 77 <= x.shape[-1] <= 110:
            out[..., -1] = 0
        return out


@pytest.mark.slow
def test_a_mutant_that_fails_between_the_shapes_of_the_grid(tmp_path: Path) -> None:
    """The grid passes it; the property finds it, shrinks it, and says and dumps the smallest."""
    subject = subject_of(WideRows)
    suite = SUITES["rms_norm"]
    assert all(check_case(case, suite, subject).passed for case in suite.grid(Tier.QUICK))
    case = case_of("rms_norm", "random")
    found = by_id(case.id).run(subject)
    assert (found.outcome, found.failure, found.case) == (Outcome.FAILED, Failure.NUMBERS, case)
    smallest = "rms_norm[eps=1e-20,rows=1,width=77,dtype=bf16,values=normal,seed=0]"
    assert found.message.startswith(f"falsified by {smallest}: out: ")
    assert not by_id(smallest).run(subject).passed
    folder = dump_case(by_id(case.id), subject, tmp_path)
    assert torch.load(folder / "inputs.pt")["x"].shape == (1, 77)
    assert smallest in (folder / "replay.py").read_text()  # found again: a search repeats


class SecondBest(ReferenceBackend):
    """Where an odd number of entries is kept, the best one is not among them."""

    def top(self, scores: Tensor, visible: Tensor, k: int, *rest: Any) -> Tensor:
        if k % 2 and scores.shape[-1]:
            scores = scores.clone()
            scores.scatter_(1, scores.argmax(-1, keepdim=True), float("-inf"))
        return super().top(scores, visible, k, *rest)


class Drifting(ReferenceBackend):
    """Values leave the quantiser an eighth larger: a second time they are larger still."""

    def quantise(self, x: Tensor, scheme: Any) -> Activation:
        return super().quantise(x * 1.125, scheme) if scheme is not None else Activation(x)


class Crossed(ReferenceBackend):
    """Of the codes of a row, the two of the last byte pair are exchanged."""

    def quantise(self, x: Tensor, scheme: Any) -> Activation:
        found = super().quantise(x, scheme)
        if found.quantised is None:
            return found
        codes, scales = found.quantised
        last = torch.cat((codes[..., :-2], codes[..., -2:].flip(-1)), -1)
        return Activation(found.values, Quantised(last, scales), scheme)


class LastRowOfMany(ReferenceBackend):
    """In a batch of more than 6 rows, the last one is another's."""

    def linear(self, a: Activation, *rest: Any) -> Tensor:
        out = super().linear(a, *rest)
        if len(out) > 6:
            out[-1] = out[0]
        return out


class OneByteShort(ReferenceBackend):
    """Images come back without their last byte."""

    def import_(self, pool: Any, blocks: Tensor, images: Tensor) -> None:
        kept = pool.data[blocks, pool.image_bytes - 1].clone()
        super().import_(pool, blocks, images)
        pool.data[blocks, pool.image_bytes - 1] = kept


class Halved(ReferenceBackend):
    """What is read is half of what was stored."""

    def load(self, region: Region, *rest: Any) -> Tensor:
        return super().load(region, *rest) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "operator", "name"),
    [
        (SecondBest, "top", "nested"),
        (Drifting, "quantise", "idempotent"),
        (Crossed, "quantise", "monotone"),
        (LastRowOfMany, "linear", "batches"),
        (OneByteShort, "export", "returned"),
        (Halved, "store", "reread"),
    ],
    ids=lambda one: f"mutant-{one.__name__}" if isinstance(one, type) else str(one),
)
def test_relations_need_no_expected_answer(
    mutant: type[ReferenceBackend], operator: str, name: str
) -> None:
    """The smallest case repeats the relation on a mutant, and the reference passes it."""
    case = case_of(operator, name)
    found = by_id(case.id).run(subject_of(mutant))
    assert found.outcome is Outcome.FAILED, str(found)
    smallest = found.message.removeprefix("falsified by ").split(": ")[0]
    assert f"property={name}" in smallest
    assert by_id(smallest).run(subject_of(mutant)).failure is found.failure
    assert by_id(smallest).run(subject_of(ReferenceBackend)).passed


def test_shrinking_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that fails slowly is not searched for ever."""
    monkeypatch.setattr(checking, "SHRINKING_SECONDS", -1.0)
    found = by_id(case_of("rms_norm", "random").id).run(subject_of(WideRows))
    assert found.outcome is Outcome.FAILED
    assert "width=77," not in found.message


def test_wrong_ids_of_properties(tmp_path: Path) -> None:
    subject = subject_of(ReferenceBackend)
    quick = case_of("rms_norm", "random", Tier.QUICK)
    with pytest.raises(UsageError, match="none of the drawn cases breaks it"):
        dump_case(by_id(quick.id), subject, tmp_path)
    with pytest.raises(UsageError, match="has the properties random, batches, not 'nested'"):
        by_id(quick.id.replace("random", "nested")).run(subject)
    with pytest.raises(UsageError, match="--dump writes cases of one operator"):
        dump_case(by_id("stateful.chunks[chunk=1,ratio=1,seed=0]"), subject, tmp_path)


@pytest.mark.slow
def test_hypothesis_is_not_imported_where_nothing_is_searched() -> None:
    code = (
        "import sys; import deepinfer.engine, deepinfer.cli.main, deepinfer.conformance.registry\n"
        "assert 'hypothesis' not in sys.modules\n"
        "for name in [n for n in sys.modules if n.split('.')[0] in ('deepinfer', 'torch')]:\n"
        "    del sys.modules[name]\n"
        "import deepinfer.conformance.plugin\n"
        "assert not {'torch', 'hypothesis', 'deepinfer_reference'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
