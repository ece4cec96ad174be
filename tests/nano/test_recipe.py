"""Parts of the nano recipe that need no NeMo."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from deepinfer.checkpoint.kinds import Component, ExpectedTensor, Kind, Part
from deepinfer.config import ModelConfig, release_limits
from deepinfer.data import nano_checkpoint
from deepinfer.formats import Scheme, round_trip
from examples.nano import evaluate_draft
from examples.nano.batches import Batches, Mixture
from examples.nano.config import HERE, published_configuration
from examples.nano.convert import decoded, encode
from examples.nano.draft import Settings as DraftSettings
from examples.nano.evaluate_draft import summary
from examples.nano.indexer import Aligned, alignment_loss, candidate_blocks, coverage
from examples.nano.optimiser import orthogonalised
from examples.nano.quantisation import kind_of, stored_value
from examples.nano.rounding import cached
from examples.nano.train import Settings


@pytest.mark.parametrize("scheme", list(Scheme))
def test_rounding_in_training_is_that_of_the_cache(scheme: Scheme) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 64, generator=generator) * torch.logspace(-3, 3, 64).unsqueeze(1)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 8).repeat(2, 1)
    x = torch.cat((x, ties, -ties, torch.zeros(1, 64)))
    assert torch.equal(cached(x, scheme), round_trip(x, scheme))


def test_gradient_passes_rounding_unchanged() -> None:
    x = torch.randn(2, 32, requires_grad=True)
    (cached(x, Scheme.MXFP4) * 3).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 32), 3.0))


def test_the_configuration_is_valid_and_within_every_release_limit() -> None:
    config = ModelConfig.from_dict(published_configuration())
    assert config.text.vocab_size <= 4096
    assert release_limits(config) == []


def test_the_checkpoint_of_the_package_is_of_this_recipe() -> None:
    directory = nano_checkpoint()
    assert json.loads((directory / "config.json").read_text()) == published_configuration()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (directory / name).read_bytes() == (HERE / name).read_bytes()
    training = json.loads((directory / "about.json").read_text())["training"]
    assert training["target"]["steps_done"] == Settings.steps
    assert training["draft"]["steps_done"] == DraftSettings.steps
    assert sum(file.stat().st_size for file in directory.iterdir()) < 25_000_000


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    mixture = Mixture(128, 96, 0.3, (8, 20))
    first, again = (Batches(3, 512).batch(5, mixture) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.ids, Batches(3, 512).batch(6, mixture).ids)
    assert not torch.equal(first.ids, Batches(4, 512).batch(5, mixture).ids)


def test_documents_of_a_row_start_at_even_positions_with_their_answers_marked() -> None:
    maker = Batches(0, 1024)
    batch = maker.batch(1, Mixture(256, 96))
    starts = (batch.ids == maker.bos).nonzero()
    assert len(starts) > 8
    assert not (starts[:, 1] % 2).any()
    segments = batch.segments[starts[:, 0], starts[:, 1]]
    assert (segments > 0).all()
    row = batch.ids[0][batch.answers[0]].tolist()
    assert row
    assert maker.tokenizer.decode(row).strip()
    assert not batch.answers[batch.segments == 0].any()


def test_a_repeated_sequence_marks_what_was_said_before() -> None:
    batch = Batches(0, 128).batch(0, Mixture(128, 96, 1.0, (10, 10)))
    assert torch.equal(batch.ids[0, 1:11], batch.ids[0, 11:21])
    assert batch.answers[0, 11:].all()
    assert not batch.answers[0, :11].any()
    assert (batch.distances[0, 11:] == 10).all()


def test_newton_schulz_makes_singular_values_nearly_one() -> None:
    matrix = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(matrix))
    assert values.min() > 0.5
    assert values.max() < 1.3


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        ("layers.0.attn.wq_a.weight", Kind.FP8, (96, 128)),
        ("layers.0.engram.embed.weight", Kind.TABLE, (50, 128)),
        ("layers.0.attn_norm.weight", Kind.BF16, (128,)),
        ("layers.0.attn_hc.fn", Kind.FP32, (24, 512)),
    ],
)
def test_stored_values_are_what_a_reader_of_the_bytes_sees(
    name: str, kind: Kind, shape: tuple[int, ...]
) -> None:
    assert kind_of(name) is kind
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
    item = ExpectedTensor("x.weight", Component.TEXT, kind, shape, Part.ATTENTION, 0)
    read = decoded(item, list(encode(item, weight)))
    assert torch.equal(read.float(), stored_value(name, weight))
    assert kind is Kind.FP32 or not torch.equal(read.float(), weight)


def test_experts_are_rounded_along_their_inputs() -> None:
    weight = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(3))  # [E, in, out]
    stored = stored_value("layers.0.ffn.experts.down_projs", weight)
    item = ExpectedTensor("x.weight", Component.TEXT, Kind.FP4, (96, 64), Part.ROUTED_EXPERTS, 0)
    read = decoded(item, list(encode(item, weight[1].mT)))
    assert torch.equal(read, stored[1].mT)


def test_candidates_are_the_best_blocks_and_the_last_one() -> None:
    scores = torch.full((1, 8, 8), -1e30)
    scores[0, 7] = torch.tensor([5.0, 0, 1, 1, 2, 2, 0, 0])
    kept = candidate_blocks(scores, kept=2, block=2, ratio=1)[0, 7]
    assert kept.tolist() == [True, True, False, False, False, False, True, True]


def test_alignment_vanishes_where_scores_are_the_mass_and_covers_it() -> None:
    mass = torch.tensor([[[0.5, 0.3, 0.2, 0.0]]])
    equal = Aligned(2, torch.log(mass.clamp_min(1e-30)), mass)
    assert float(alignment_loss([equal])) == pytest.approx(0.0, abs=1e-5)
    other = Aligned(2, torch.tensor([[[0.0, 0.0, 3.0, 0.0]]]), mass)
    assert float(alignment_loss([other])) > 0.5
    assert coverage([equal], 2) == [pytest.approx(0.8)]
    assert coverage([other], 1) == [pytest.approx(0.2)]


def test_summary_of_rounds_counts_only_slots_that_were_reached() -> None:
    rounds = [
        {"accepted": 2, "added": 3, "right": [True, True, False], "confidence": [0.9] * 5},
        {"accepted": 0, "added": 1, "right": [False], "confidence": [0.2, 0.9, 0.9, 0.9, 0.9]},
        {"accepted": 1, "added": 1, "right": [True], "confidence": [0.9] * 5},  # cut by the end
    ]
    found = summary(rounds, 5)
    assert (found["accepted"], found["acceptance_length"]) == (1.0, 2.0)
    assert found["tokens_per_round"] == pytest.approx(5 / 3, abs=1e-3)
    assert found["by_slot"] == [pytest.approx(2 / 3, abs=1e-4), 1.0, 0.0, 0, 0]
    assert found["accepted_without_end"] == pytest.approx(4 / 3, abs=1e-3)
    assert found["calibration_error"] == pytest.approx((abs(3.6 - 3) + 0.2) / 5)


@pytest.mark.parametrize("wrong", range(6))
def test_rounds_follow_the_output_to_its_end(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    """Every draft is right but those of slot `wrong`; the model wrote tokens 3 to 12."""
    ids, size = torch.arange(100, 113), 5
    padded = torch.cat((ids, torch.zeros(64, dtype=torch.long)))

    def choose(anchor: Tensor, golden: Tensor) -> tuple[Tensor, Tensor]:
        assert torch.equal(golden, ids[anchor])
        tokens = padded[anchor + 1 + torch.arange(size)]
        tokens = torch.where(torch.arange(size) == wrong, -1, tokens)
        return tokens.unsqueeze(0), torch.full((1, size), 0.5)

    draft = SimpleNamespace(
        size=size,
        project=lambda features: features,
        forward=lambda context, segments, rows, anchors, golden: anchors,
        choose=choose,
    )
    network = SimpleNamespace(window=8)
    monkeypatch.setattr(evaluate_draft, "look", lambda *_: SimpleNamespace(features=None))
    rounds = evaluate_draft.replay(draft, network, ids, 3)  # type: ignore[arg-type]
    assert sum(one["added"] for one in rounds) == 9
    whole, last = divmod(9, wrong + 1)
    assert [one["accepted"] for one in rounds] == [wrong] * whole + [last] * (last > 0)
    assert all(len(one["right"]) <= size and False not in one["right"][:-1] for one in rounds)
