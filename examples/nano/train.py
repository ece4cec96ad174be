"""Train the nano language model: `python -m examples.nano.train OUT [--steps N] [--workers N]`.

Run it from the root of the repository. It writes OUT/target.pt every five minutes and at the end,
continues from it when it is there, and gives the same weights whether interrupted or not, with one
worker or two: a batch is always computed as two halves, each by one thread. OUT/target.log has one
line per report. The draft module is trained after it, by `examples.nano.draft`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.nano import indexer
from examples.nano.batches import Batch, Batches, Mixture
from examples.nano.network import Network, Pass
from examples.nano.quantisation import load_masters
from examples.nano.reference import build_reference
from examples.nano.training import HALVES, Half, Training, mean_report

EVALUATE_STEPS = 250


@dataclass(frozen=True)
class Settings:
    """What decides the result. Fractions are of `steps`."""

    seed: int = 0
    steps: int = 2000
    tokens: int = 2048  # a step
    muon: float = 0.01
    adam: float = 2e-3
    decay: float = 0.05
    warm_up: float = 0.02
    others: float = 0.3  # share of ordinary tokens that are predicted; answers always are
    answer_weight: float = 4.0  # relative to an ordinary token
    repeat_weight: float = 0.3  # of a token said before; a row has many of these
    align_from: float = 0.2
    align_rows: int = 32
    sparse_from: float = 0.6
    stored_from: float = 2 / 3
    balance: float = 2e-3  # step of the router's bias


def mixture(settings: Settings, step: int) -> Mixture:
    """The curriculum: distance grows, repeated sequences fade; every fourth batch is long."""
    done = step / settings.steps
    if done < 0.15:
        return Mixture(128, 96, 0.1, (8, 62))
    repeats = 0.05 if done < 0.6 else 0.02
    if step % 3:
        return Mixture(256, 200, repeats, (32, 124))
    return Mixture(512, 400, repeats, (64, 250))


def rate(settings: Settings, step: int) -> float:
    """Learning rate relative to its peak: linear up, level, then linear down from a half on."""
    up = (step + 1) / max(1.0, settings.warm_up * settings.steps)
    down = (1 - step / settings.steps) * 2
    return max(0.02, min(1.0, up, down))


class Trainer(Training):
    """The training of the language model."""

    def __init__(self, settings: Settings, workers: int = HALVES) -> None:
        reference = build_reference(settings.seed)
        for parameter in reference.target.parameters():
            parameter.requires_grad_(True)  # NeMo freezes its indexer
        super().__init__(settings, reference.target, workers)
        self.config = reference.config
        self.network = Network(reference.target, self.config)
        self.batches = Batches(settings.seed, settings.tokens)

    def step(self) -> dict[str, float]:
        """One step; returns what happened."""
        settings, step = self.settings, self.step_number
        done = step / settings.steps
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
        batch = self.batches.batch(step, mixture(settings, step))
        align = None
        if done >= settings.align_from:
            length = batch.ids.shape[1]
            align = torch.randperm(length, generator=generator)[: settings.align_rows].sort().values
        chosen = self._chosen(batch, generator)
        load_masters(self.optimiser, stored=done >= settings.stored_from)
        total = float(self._weights(batch)[chosen].sum())
        rows = batch.ids.shape[0] // HALVES

        def half(number: int) -> Half:
            part = slice(number * rows, (number + 1) * rows)
            own = Batch(*(x[part] for x in batch))
            todo = Pass(own.segments, sparse=done >= settings.sparse_from, align=align)
            return self._half(own, chosen[part], todo, total)

        shape = (tuple(batch.ids.shape), align is None, done >= settings.sparse_from)
        halves = self.compute(half, shape)
        report = mean_report(halves)
        report["norm"] = self.optimiser.step(rate(settings, step))
        self._balance([sum(loads) for loads in zip(*(one.loads for one in halves), strict=True)])
        self.step_number += 1
        return report

    def _chosen(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Which tokens 1.. of each row are predicted: all answers and some of the others."""
        segments = batch.segments
        known = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        drawn = torch.rand(known.shape, generator=generator) < self.settings.others
        return known & (batch.answers[:, 1:] | drawn)

    def _weights(self, batch: Batch) -> Tensor:
        settings = self.settings
        known = torch.where(batch.repeated, settings.repeat_weight, settings.answer_weight)
        return torch.where(batch.answers[:, 1:], known.unsqueeze(1), 1.0)

    def _half(self, batch: Batch, chosen: Tensor, todo: Pass, total: float) -> Half:
        """Gradients of one half of a batch whose weights sum to `total`."""
        hidden = self.network.hidden(batch.ids, todo)
        logits = self.network.logits(hidden[:, :-1][chosen])
        targets, is_answer = batch.ids[:, 1:][chosen], batch.answers[:, 1:][chosen]
        losses = F.cross_entropy(logits, targets, reduction="none")
        loss = (losses * self._weights(batch)[chosen]).sum() / total
        right = (logits.argmax(-1) == targets)[is_answer].float()  # repeated rows included
        report = {
            "answer": float(losses.detach()[is_answer].mean()),
            "other": float(losses.detach()[~is_answer].mean()),
            "right": float(right.mean()),
        }
        if todo.align is not None:
            alignment = indexer.alignment_loss(todo.aligned)
            kept = self.config["text_config"]["index_topk"]
            report |= {
                "align": float(alignment.detach()),
                "coverage": min(indexer.coverage(todo.aligned, kept)),
            }
            loss = loss + alignment / HALVES
        parameters = list(self.optimiser.parameters.values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return Half(gradients, report, todo.loads)

    @torch.no_grad()
    def _balance(self, loads: list[Tensor]) -> None:
        """Raise the bias of experts with few tokens; the bias of images follows that of text."""
        for layer, load in zip(self.network.layers, loads, strict=True):
            gate = layer.ffn.gate
            difference = load.float().mean() - load.float()
            gate.e_score_correction_bias.add_(difference.sign(), alpha=self.settings.balance)
            gate.bias_vl.copy_(gate.e_score_correction_bias)

    def evaluation(self) -> dict[str, float]:
        """Accuracy every `EVALUATE_STEPS` and at the end."""
        number = self.step_number
        due = number % EVALUATE_STEPS == 0 or number == self.settings.steps
        return self.evaluate() if due else {}

    @torch.no_grad()
    def evaluate(self, batches: int = 3) -> dict[str, float]:
        """Share of held-out answers whose tokens all are the most probable ones, by distance."""
        done = self.step_number / self.settings.steps
        load_masters(self.optimiser, stored=done >= self.settings.stored_from)
        maker = Batches(self.settings.seed + 1, self.settings.tokens, "heldout")
        window = self.config["text_config"]["sliding_window"]
        counts: dict[str, list[bool]] = {"near": [], "far": [], "sums": []}
        for number in range(batches):
            batch = maker.batch(number, Mixture(512, 400))
            todo = Pass(batch.segments, sparse=done >= self.settings.sparse_from)
            logits = self.network.logits(self.network.hidden(batch.ids, todo))
            right = logits[:, :-1].argmax(-1) == batch.ids[:, 1:]
            for row, start, end, distance in spans(batch):
                name = "sums" if distance == 0 else "near" if distance <= window else "far"
                counts[name].append(bool(right[row, start - 1 : end - 1].all()))
        return {name: sum(values) / max(1, len(values)) for name, values in counts.items()}


def spans(batch: Batch) -> list[tuple[int, int, int, int]]:
    """Runs of answer tokens of one distance: row, first, last + 1, distance."""
    found = []
    for row in range(batch.ids.shape[0]):
        answers, distances = batch.answers[row].tolist(), batch.distances[row].tolist()
        start = 0
        for i in range(1, len(answers) + 1):
            inside = i < len(answers) and answers[i] and answers[i - 1]
            if inside and distances[i] == distances[i - 1]:
                continue
            if answers[i - 1]:
                found.append((row, start, i, distances[i - 1]))
            start = i
    return found


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--workers", type=int, default=HALVES, choices=(1, HALVES))
    parser.add_argument("--muon", type=float, default=Settings.muon, help="its learning rate")
    parser.add_argument("--adam", type=float, default=Settings.adam, help="AdamW's learning rate")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        seed=options.seed, steps=options.steps, muon=options.muon, adam=options.adam
    )
    Trainer(settings, options.workers).run(options.out / "target.pt")


if __name__ == "__main__":
    main()
