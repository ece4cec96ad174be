"""The recipe's forward pass and training, over NeMo's modules.

Only `pytest -m soak` runs them, where NeMo is installed (examples/nano/README.md).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.checkpoint import expected_tensors
from deepinfer.config import ModelConfig
from examples.nano.batches import Batches, Mixture
from examples.nano.convert import nemo_value

pytest.importorskip("nemo_automodel")
pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("default")]

from examples.nano import convert, draft  # noqa: E402
from examples.nano.draft import Draft, look  # noqa: E402
from examples.nano.network import Network, Pass  # noqa: E402
from examples.nano.reference import Reference, build_reference  # noqa: E402
from examples.nano.train import Settings, Trainer  # noqa: E402


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


@pytest.fixture(scope="module")
def reference() -> Reference:
    return build_reference(0)


@torch.no_grad()
def test_logits_are_those_of_nemo_with_selection(reference: Reference) -> None:
    ids = torch.randint(3, 1900, (1, 192), generator=torch.Generator().manual_seed(0))
    network = Network(reference.target, reference.config)
    got = network.logits(network.hidden(ids, Pass(torch.ones_like(ids), sparse=True)))
    expected = reference.target(ids).logits
    relative = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(relative.median()) < 1e-5
    assert float(relative.max()) < 0.1  # a flipped code or selection


@torch.no_grad()
def test_a_packed_document_is_computed_as_alone(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rounding depends on the rotation, and so on the position in the row: leave it out.
    monkeypatch.setattr("examples.nano.network.cached", lambda x, scheme: x)
    network = Network(reference.target, reference.config)
    batch = Batches(0, 128).batch(0, Mixture(128, 40))
    inside = batch.segments[0] == 2
    alone = torch.full((1, 128), 2)
    length = int(inside.sum())
    assert length > 10
    alone[0, :length] = batch.ids[0][inside]
    segments = (torch.arange(128) < length).long().unsqueeze(0)
    packed = network.hidden(batch.ids, Pass(batch.segments))[0][inside]
    single = network.hidden(alone, Pass(segments))[0, :length]
    assert float((packed - single).norm() / single.norm()) < 1e-4


@torch.no_grad()
def test_draft_states_are_those_of_nemo(reference: Reference) -> None:
    network, stages = Network(reference.target, reference.config), Draft(reference)
    batch = Batches(0, 128).batch(0, Mixture(128, 96, 1.0, (8, 8)))
    seen = look(network, batch)
    anchors = torch.tensor([20, 90])
    golden = batch.ids[0, anchors]
    got = stages.forward(
        stages.project(seen.features),
        batch.segments,
        torch.zeros(2, dtype=torch.long),
        anchors,
        golden,
    )
    noise = torch.full((2, 4), reference.config["text_config"]["dspark_noise_token_id"])
    slots = torch.cat((golden.unsqueeze(1), noise), 1).view(1, -1)
    expected = reference.draft(
        reference.target.model.embed_tokens(slots),
        seen.features,
        position_ids=reference.draft.build_position_ids(anchors.unsqueeze(0), 128),
        attention_mask=reference.draft.build_attention_mask(
            anchors.unsqueeze(0), torch.ones(1, 2, dtype=torch.bool), 128, torch.float32
        ),
    ).normalized_hidden_states
    logits = reference.target.lm_head(expected).view(2, 5, -1)
    assert float((got.logits - logits).norm() / logits.norm()) < 1e-3


def test_every_published_tensor_has_a_source(reference: Reference) -> None:
    tensors = {
        name: value
        for module in (reference.target, reference.draft)
        for name, value in [*module.named_parameters(), *module.named_buffers()]
    }
    for item in expected_tensors(ModelConfig.from_dict(reference.config)):
        assert tuple(nemo_value(item.name, tensors).shape) == item.shape, item.name


def test_training_continues_to_the_same_weights_with_any_workers(tmp_path: Path) -> None:
    settings = Settings(steps=4, tokens=1024, align_from=0.0, sparse_from=0.5, stored_from=0.6)
    whole = Trainer(settings, workers=1)
    for _ in range(3):
        whole.step()
    first = Trainer(settings, workers=2)
    first.step()
    first.save(tmp_path / "target.pt", 0.0)
    second = Trainer(settings, workers=2)
    second.restore(tmp_path / "target.pt")
    for _ in range(2):
        second.step()
    assert second.step_number == whole.step_number
    for name, master in whole.optimiser.masters.items():
        assert torch.equal(second.optimiser.masters[name], master), name


def test_draft_training_continues_to_the_same_weights_with_any_workers(tmp_path: Path) -> None:
    Trainer(Settings(steps=1, tokens=256), workers=1).save(tmp_path / "target.pt", 0.0)
    settings = draft.Settings(steps=3, tokens=1024, anchors=16, stored_from=0.5)
    whole = draft.DraftTrainer(settings, tmp_path, workers=1)
    start = {name: master.clone() for name, master in whole.optimiser.masters.items()}
    for _ in range(3):
        whole.step()
    first = draft.DraftTrainer(settings, tmp_path, workers=2)
    for _ in range(2):
        first.step()
    first.save(tmp_path / "draft.pt", 0.0)
    second = draft.DraftTrainer(settings, tmp_path, workers=2)
    second.restore(tmp_path / "draft.pt")
    second.step()
    for name, master in whole.optimiser.masters.items():
        assert torch.equal(second.optimiser.masters[name], master), name
        assert not torch.equal(start[name], master), name


@pytest.mark.parametrize(("align_from", "moves"), [(0.0, True), (2.0, False)])
def test_the_indexer_moves_by_alignment_alone(align_from: float, moves: bool) -> None:
    trainer = Trainer(Settings(steps=4, tokens=256, align_from=align_from), workers=1)
    masters = trainer.optimiser.masters
    before = {name: master.clone() for name, master in masters.items() if ".indexer." in name}
    trainer.step()
    assert len(before) > 5
    for name, master in before.items():
        assert torch.equal(masters[name], master) != moves, name


def test_a_run_is_converted_and_agrees_with_nemo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    trainer = Trainer(Settings(steps=1, tokens=256), workers=1)
    trainer.save(run / "target.pt", 0.0)
    stages = draft.DraftTrainer(draft.Settings(steps=1, tokens=1024, anchors=16), run, workers=1)
    stages.step()
    stages.save(run / "draft.pt", 0.0)
    monkeypatch.setattr("sys.argv", ["convert", str(run), str(out), "--verify"])
    assert convert.main() == 0
    assert "draft" in json.loads((out / "about.json").read_text())["training"]

    def wrong(name: str, tensors: dict[str, Any]) -> Any:
        swapped = re.sub(r"\.w([13])\.", lambda found: f".w{4 - int(found[1])}.", name)
        return nemo_value(swapped, tensors)

    monkeypatch.setattr(convert, "nemo_value", wrong)
    assert convert.main() == 1

    trainer.step()
    trainer.save(run / "target.pt", 0.0)
    with pytest.raises(SystemExit, match="another target"):
        convert.main()
