"""Golden data take the path of requests, so `deepinfer golden` sees the faults of that path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Batch, Routing
from deepinfer.backend.registry import REFERENCE
from deepinfer.cli.main import main
from deepinfer.engine.batch import BatchBuilder
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.small_golden import MODEL, SmallGolden, failures

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


class FourthLayerRaises(ReferenceBackend):
    """A backend that cannot route the rows of one layer."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.layers = 0

    def route(self, *arguments: Any) -> Routing:
        self.layers += 1
        if self.layers == 4:
            raise RuntimeError("a broken kernel")
        return super().route(*arguments)


@pytest.mark.slow
def test_a_layer_that_raises_hides_no_later_one(with_model: SmallGolden) -> None:
    """It is one failed item; the layers behind it have stored inputs and are compared."""
    with_model.part(LOGITS, ["p7"])
    with_model.part(LAYERS, ["p7"])
    layer = f"{MODEL}/layers/p7/L3"
    right = [item for item in with_model.run().items if not item.name.startswith(f"{layer}/")]
    broken = with_model.run(FourthLayerRaises).items
    (place,) = (place for place, item in enumerate(broken) if item.name == layer)
    assert broken[place].outcome == "failed"
    assert "RuntimeError: a broken kernel" in broken[place].note
    compared = [item for item in broken if "/layers/" in item.name and item.name != layer]
    assert compared == [item for item in right if "/layers/" in item.name]
    assert broken[place - 1].name.startswith(f"{MODEL}/layers/p7/L2/")
    assert broken[place + 1].name.startswith(f"{MODEL}/layers/p7/L4/")


@pytest.mark.slow
def test_the_environment_does_not_cut_a_prompt(
    with_model: SmallGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound on index scores makes steps of a few rows; layers are compared over whole prompts."""
    monkeypatch.setenv("DEEPINFER_INDEX_ATTN_MEMORY_LIMIT", "20")
    with_model.part(LOGITS, ["p7"])
    with_model.part(LAYERS, ["p7"])
    assert failures(with_model.run()) == []
