"""The draft module (DSpark): its forward pass and its training on the language model's outputs.

`python -m examples.nano.draft RUN [--steps N] [--workers N]` needs RUN/target.pt and makes
RUN/draft.pt. The labels are what the trained model itself finds most probable, as stored (FP8,
FP4): a block is trained on as long as the text before each slot is what the model would have
written. As in `train`, the result is the same with one worker or two, interrupted or not.

Two losses: cross entropy of each slot, with the Markov head on the token before; and, for the
confidence head, binary cross entropy of "this slot's best token is right". The confidence head
reads the state before the last norm, as in the release, and moves nothing but itself.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from deepinfer.formats import Scheme
from examples.nano import hyper
from examples.nano.batches import Batch, Batches, Mixture
from examples.nano.network import Network, Pass, Rotation, experts, norm, rotation_of
from examples.nano.quantisation import load_masters, stored_value
from examples.nano.reference import Reference, build_reference
from examples.nano.rounding import cached
from examples.nano.training import HALVES, Half, Training, mean_report

STARTED_FROM = (0, 5, 6)
"""The layer of the language model that each stage begins as."""


@dataclass(frozen=True)
class Settings:
    """What decides the result."""

    seed: int = 0
    steps: int = 1600
    tokens: int = 2048
    anchors: int = 384  # blocks a step
    muon: float = 0.01
    adam: float = 2e-3
    decay: float = 0.05
    slot_decay: float = 0.9  # weight of a slot relative to the one before
    stored_from: float = 2 / 3


class Drafted(NamedTuple):
    """raw: collapsed states [A, K, H] before the last norm. logits: [A, K, V] without Markov."""

    raw: Tensor
    logits: Tensor


class Draft:
    """The stages over NeMo's parameters; embedding and head are the language model's."""

    def __init__(self, reference: Reference) -> None:
        self.text = reference.config["text_config"]
        self.stages = list(reference.draft.mtp)
        self.target = reference.target
        self.size: int = self.text["dspark_block_size"]
        self.window: int = self.text["sliding_window"]

    @property
    def last(self) -> Any:
        """The stage with the heads."""
        return self.stages[-1]

    def project(self, features: Tensor) -> Tensor:
        """Context states [N, H] of the target features [N, layers * H]."""
        first = self.stages[0]
        return norm(F.linear(features, first.main_proj.weight), first.main_norm)

    def forward(
        self, context: Tensor, segments: Tensor, rows: Tensor, anchors: Tensor, golden: Tensor
    ) -> Drafted:
        """Drafts after `golden` tokens [A] at positions `anchors` [A] of rows [A].

        context: [B, T, H] of `project`; each block sees the window of positions before its anchor
        that belong to the anchor's document.
        """
        count = anchors.shape[0]
        noise = torch.full((count, self.size), self.text["dspark_noise_token_id"])
        ids = torch.cat((golden.unsqueeze(1), noise[:, 1:]), 1)
        embedded = F.embedding(ids.flatten(), self.target.model.embed_tokens.weight)
        streams = embedded.unsqueeze(1).expand(-1, self.text["hc_mult"], -1)
        pre = torch.zeros(embedded.shape[0], self.text["hc_mult"])
        pre[:, 0] = 1
        seen = anchors.unsqueeze(1) - self.window + torch.arange(self.window)  # [A, W]
        safe = seen.clamp_min(0)
        visible = (seen >= 0) & (
            segments[rows.unsqueeze(1), safe] == segments[rows, anchors - 1].unsqueeze(1)
        )
        for stage in self.stages:
            mix = hyper.predict(stage.attn_hc, streams)
            a = hyper.collapse_norm(streams, pre, stage.attn_norm.weight, stage.attn_norm.eps)
            output = self._attention(
                stage.attn,
                a.unflatten(0, (count, self.size)),
                context,
                rows,
                safe,
                visible,
                anchors,
            )
            streams = hyper.expand(output.flatten(0, 1), streams, mix.post, mix.comb)
            ffn_mix = hyper.predict(stage.ffn_hc, streams)
            b = hyper.collapse_norm(streams, mix.pre, stage.ffn_norm.weight, stage.ffn_norm.eps)
            streams = hyper.expand(experts(stage.ffn, b)[0], streams, ffn_mix.post, ffn_mix.comb)
            pre = ffn_mix.pre
        raw = (streams * pre.unsqueeze(-1)).sum(1)
        logits = F.linear(norm(raw, self.last.norm), self.target.lm_head.weight)
        return Drafted(*(x.unflatten(0, (count, self.size)) for x in (raw, logits)))

    def _attention(
        self,
        attn: Any,
        a: Tensor,
        context: Tensor,
        rows: Tensor,
        positions: Tensor,
        visible: Tensor,
        anchors: Tensor,
    ) -> Tensor:
        """Every slot sees its block's window of context and all slots of the block."""
        heads, width = attn.num_heads, attn.head_dim
        slots = anchors.unsqueeze(1) + torch.arange(self.size)
        table = rotation_of(attn, torch.arange(context.shape[1] + self.size))
        near = norm(F.linear(context, attn.wkv.weight), attn.kv_norm)
        near = turn(near, Rotation(table.cos[: near.shape[1]], table.sin[: near.shape[1]]))
        near = cached(near, Scheme.FP8_BLOCK32)[rows.unsqueeze(1), positions]  # [A, W, D]
        here = Rotation(table.cos[slots], table.sin[slots])  # [A, K, pairs]
        own = turn(norm(F.linear(a, attn.wkv.weight), attn.kv_norm), here)
        keys = torch.cat((near, cached(own, Scheme.FP8_BLOCK32)), 1)
        query = F.linear(norm(F.linear(a, attn.wq_a.weight), attn.q_norm), attn.wq_b.weight)
        query = query.unflatten(-1, (heads, width))
        per_head = Rotation(here.cos.unsqueeze(2), here.sin.unsqueeze(2))
        query = turn(query, per_head) * width**-0.5
        logits = torch.bmm(query.flatten(1, 2), keys.mT).unflatten(1, (self.size, heads))
        hidden = F.pad(~visible, (0, self.size))
        logits = logits.masked_fill(hidden[:, None, None], -torch.inf)
        sink = attn.attn_sink.view(1, 1, heads, 1).expand(*logits.shape[:3], 1)
        weights = torch.cat((logits, sink), -1).softmax(-1)[..., :-1]
        attended = torch.bmm(weights.flatten(1, 2), keys).view_as(query)
        attended = turn(attended, Rotation(per_head.cos, -per_head.sin))
        groups = attended.flatten(2).unflatten(-1, (attn.num_groups, -1))
        weight = attn.wo_a.weight.view(attn.num_groups, -1, groups.shape[-1])
        return F.linear(torch.einsum("akgn,grn->akgr", groups, weight).flatten(2), attn.wo_b.weight)

    def markov(self, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Bias [..., V] and embedding [..., R] for the token before a slot."""
        head = self.last.markov_head
        embedded = F.embedding(previous, head.embed.weight)
        return F.linear(embedded, head.head.weight), embedded

    def confidence(self, raw: Tensor, embedded: Tensor) -> Tensor:
        """Logits [...] that a slot's token is right."""
        inputs = torch.cat((raw.detach(), embedded.detach()), -1)
        return F.linear(inputs, self.last.confidence_head.proj.weight).squeeze(-1)

    @torch.no_grad()
    def choose(self, drafted: Drafted, golden: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy tokens [A, K] and the probability that each is right [A, K]."""
        previous, tokens, confidences = golden, [], []
        for slot in range(self.size):
            bias, embedded = self.markov(previous)
            confidences.append(self.confidence(drafted.raw[:, slot], embedded).sigmoid())
            previous = (drafted.logits[:, slot] + bias).argmax(-1)
            tokens.append(previous)
        return torch.stack(tokens, 1), torch.stack(confidences, 1)


def turn(x: Tensor, rotation: Rotation) -> Tensor:
    """`network.rotate` with one angle per row: cos and sin end like x but for the channels."""
    pairs = rotation.cos.shape[-1]
    plain, rotated = x.split((x.shape[-1] - 2 * pairs, 2 * pairs), -1)
    first, second = rotated.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rotation.cos, rotation.sin
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), -1)
    return torch.cat((plain, turned.flatten(-2)), -1)


class Seen(NamedTuple):
    """What the language model says of a batch: context features [B, T, L * H], and its most
    probable next token at each position [B, T]."""

    features: Tensor
    best: Tensor


@torch.no_grad()
def look(network: Network, batch: Batch) -> Seen:
    """One pass of the language model, with selection."""
    todo = Pass(batch.segments, sparse=True)
    hidden = network.hidden(batch.ids, todo)
    features = torch.cat(todo.features, -1).unflatten(0, tuple(batch.ids.shape))
    return Seen(features, network.logits(hidden).argmax(-1))


def target_digest(run: Path) -> str:
    """What a draft belongs to: a hash of the weights in RUN/target.pt."""
    masters = torch.load(run / "target.pt", weights_only=True)["optimiser"]["masters"]
    digest = hashlib.sha256()
    for name in sorted(masters):
        digest.update(name.encode() + masters[name].numpy().tobytes())
    return digest.hexdigest()


def load_target(reference: Reference, run: Path) -> None:
    """Give the language model what RUN/target.pt holds, as stored."""
    state = torch.load(run / "target.pt", weights_only=True)
    with torch.no_grad():
        for name, parameter in reference.target.named_parameters():
            parameter.copy_(stored_value(name, state["optimiser"]["masters"][name]))
            parameter.requires_grad_(False)
        for name, buffer in reference.target.named_buffers():
            buffer.copy_(state["buffers"][name])


@torch.no_grad()
def begin_from_target(reference: Reference) -> None:
    """Starting values: stages are copies of layers of the trained model.

    The first reads what is near, the others find what looks alike; their keys are made from the
    mean of the target features.
    """
    layers = reference.target.model.layers
    for stage, number in zip(reference.draft.mtp, STARTED_FROM, strict=True):
        layer = layers[str(number)]
        values = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
        for name, value in [*stage.named_parameters(), *stage.named_buffers()]:
            if name in values:
                value.copy_(values[name])
    first = reference.draft.mtp[0]
    hidden = first.main_proj.weight.shape[0]
    count = first.main_proj.weight.shape[1] // hidden
    first.main_proj.weight.mul_(0.2).add_(torch.eye(hidden).repeat(1, count) / count)
    reference.draft.mtp[-1].norm.weight.copy_(reference.target.model.norm.weight)


class DraftTrainer(Training):
    """The training of the draft on the language model in RUN/target.pt."""

    def __init__(self, settings: Settings, run: Path, workers: int = HALVES) -> None:
        reference = build_reference(settings.seed)
        load_target(reference, run)
        begin_from_target(reference)
        super().__init__(settings, reference.draft, workers, target=target_digest(run))
        self.network = Network(reference.target, reference.config)
        self.draft = Draft(reference)
        self.batches = Batches(settings.seed + 77, settings.tokens)

    def step(self) -> dict[str, float]:
        """One step, over two halves of a batch; returns what happened."""
        settings, step = self.settings, self.step_number
        mixture = Mixture(256, 200) if step % 2 else Mixture(512, 400)
        batch = self.batches.batch(step, mixture)
        rows = batch.ids.shape[0] // HALVES
        load_masters(self.optimiser, stored=step >= settings.stored_from * settings.steps)
        parameters = list(self.optimiser.parameters.values())

        def half(number: int) -> Half:
            own = Batch(*(x[number * rows : (number + 1) * rows] for x in batch))
            seed = (settings.seed * 1_000_003 + step) * HALVES + number
            generator = torch.Generator().manual_seed(seed)
            loss, report = self._loss(own, look(self.network, own), generator)
            gradients = torch.autograd.grad(loss / HALVES, parameters, allow_unused=True)
            return Half(gradients, report, [])

        report = mean_report(self.compute(half, batch.ids.shape[1]))
        left = 1 - step / settings.steps
        report["norm"] = self.optimiser.step(max(0.02, min(1.0, (step + 1) / 50, 2 * left)))
        self.step_number += 1
        return report

    def _loss(
        self, batch: Batch, seen: Seen, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, float]]:
        size, length = self.draft.size, batch.ids.shape[1]
        segments = batch.segments
        inside = torch.zeros_like(segments, dtype=torch.bool)  # may be an anchor
        inside[:, 1 : length - 1] = segments[:, 1:-1] == segments[:, :-2]
        inside &= segments > 0
        places = inside.nonzero()
        # answers and what surrounds them are what the model is asked to write: draw these more
        near = F.max_pool1d(batch.answers[:, None].float(), 15, 1, 7)[:, 0] > 0
        odds = torch.where(near[places[:, 0], places[:, 1]], 1.0, 0.3)
        drawn = torch.multinomial(odds, self.settings.anchors // HALVES, True, generator=generator)
        rows, anchors = places[drawn].unbind(1)
        slots = anchors.unsqueeze(1) + torch.arange(size)
        safe = slots.clamp_max(length - 1)
        inputs = batch.ids[rows.unsqueeze(1), safe]  # the token before each slot's output
        labels = seen.best[rows.unsqueeze(1), safe]
        same = (slots < length) & (
            segments[rows.unsqueeze(1), safe] == segments[rows, anchors, None]
        )
        written = torch.cat((torch.ones_like(same[:, :1]), inputs[:, 1:] == labels[:, :-1]), 1)
        known = (same & written).cumprod(1).bool()
        drafted = self.draft.forward(
            self.draft.project(seen.features), segments, rows, anchors, inputs[:, 0]
        )
        bias, embedded = self.draft.markov(inputs)
        logits = drafted.logits + bias
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        weights = known * self.settings.slot_decay ** torch.arange(size)
        right = logits.argmax(-1) == labels
        confidence = self.draft.confidence(drafted.raw, embedded)
        doubts = F.binary_cross_entropy_with_logits(confidence, right.float(), reduction="none")
        loss = (losses.view_as(weights) * weights).sum() / weights.sum()
        doubt = doubts[known].mean()
        hits = (right & known).cumprod(1).sum(1).float()
        return loss + doubt, {
            "loss": float(loss.detach()),
            "doubt": float(doubt.detach()),
            "right": float(right[known].float().mean()),
            "run": float(hits.mean()),
        }


def main() -> None:
    """Train the draft from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--workers", type=int, default=HALVES, choices=(1, HALVES))
    options = parser.parse_args()
    settings = Settings(steps=options.steps)
    DraftTrainer(settings, options.run, options.workers).run(options.run / "draft.pt")


if __name__ == "__main__":
    main()
