"""Golden data take the path of requests, so `deepinfer golden` sees the faults of that path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Batch
from deepinfer.backend.registry import REFERENCE
from deepinfer.cli.main import main
from deepinfer.engine.batch import BatchBuilder
from tests.conformance.small_golden import SmallGolden, failures

LOGITS, GREEDY = "logits.safetensors", "greedy.safetensors"
LAYERS = "intermediates.fp32.safetensors"
Fault = Callable[[Batch], Batch]


def _shifted(rows: Tensor) -> Tensor:
    return torch.cat([rows[:1], rows[:-1]])


FAULTS: dict[str, Fault] = {
    "positions": lambda batch: dataclasses.replace(batch, positions=_shifted(batch.positions)),
    "tokens": lambda batch: dataclasses.replace(batch, token_ids=_shifted(batch.token_ids)),
    "history": lambda batch: dataclasses.replace(
        batch, history=None if batch.history is None else batch.history.roll(1, 1)
    ),
}


@pytest.fixture
def data(with_model: SmallGolden) -> SmallGolden:
    with_model.part(LOGITS, ["p2", "p7"])
    with_model.part(GREEDY, ["p7"])
    with_model.part(LAYERS, ["p7"])
    return with_model


def put(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fault into what the production batch builder builds."""
    build = BatchBuilder.build_batch

    def faulty(*arguments: object) -> Batch:
        return fault(build(*arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(BatchBuilder, "build_batch", faulty)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_batch_builder_fails_golden_data(
    fault: str, data: SmallGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(FAULTS[fault], monkeypatch)
    failed = failures(data.run())
    for part in ("logits/p7", "greedy/p7", "layers/p7/"):
        assert any(part in name for name in failed), (part, failed)


@pytest.mark.slow
def test_the_command_fails_with_it(
    data: SmallGolden, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["golden", str(data.root), "--accelerator", REFERENCE, "--compute", "fp32"]
    assert main(arguments) == 0, capsys.readouterr().out
    put(FAULTS["positions"], monkeypatch)
    assert main(arguments) == 1
    assert "failed" in capsys.readouterr().out
