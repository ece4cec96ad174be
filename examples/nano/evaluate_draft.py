"""Measure the draft: `python -m examples.nano.evaluate_draft RUN CHECKPOINT [--prompts N]`.

CHECKPOINT is what `examples.nano.convert` wrote of RUN. The engine (INFER, FP4 cache) answers
held-out prompts greedily; then the draft is replayed along those outputs, as greedy speculative
decoding would use it: a round drafts five tokens, keeps those that are what the model wrote, and
the model gives one more. Prints one JSON object:

* accepted: mean number of drafts kept in a round. tokens_per_round: accepted and the model's own;
  the last round of an output may be cut short by its end;
* by_slot: share of slots that are right, of those that were reached;
* calibration_error: expected calibration error of the confidences of the slots that were reached,
  in ten bins of equal width.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepinfer import LLM, SamplingParams
from examples.nano import data
from examples.nano.batches import Batch, Batches
from examples.nano.convert import load
from examples.nano.draft import Draft, look
from examples.nano.network import Network
from examples.nano.reference import build_reference

SEED = 515
MAX_TOKENS = 48
LONGEST_PROMPT = 440
BINS = 10


def prompts(count: int) -> list[str]:
    """Beginnings of held-out documents, up to where the model is to write."""
    found: list[str] = []
    for document in data.documents(SEED, "heldout"):
        if len(found) == count:
            break
        if data.token_count(document.text) > LONGEST_PROMPT:
            continue
        first = document.answer_spans[0][0]
        end = document.text.rfind(data.ASSISTANT, 0, first)
        found.append(document.text[: end + len(data.ASSISTANT) if end >= 0 else first])
    return found


def replay(draft: Draft, network: Network, ids: Tensor, start: int) -> list[dict[str, Any]]:
    """Rounds along ids [T]; the model wrote those from `start` on."""
    window = network.window
    length = ids.shape[0]
    padded = F.pad(ids, (0, -length % window)).unsqueeze(0)
    segments = (torch.arange(padded.shape[1]) < length).long().unsqueeze(0)
    empty = torch.zeros_like(padded)
    batch = Batch(padded, segments, empty.bool(), empty, torch.zeros(1, dtype=torch.bool))
    seen = look(network, batch)
    context = draft.project(seen.features)
    rounds = []
    anchor = start  # the first token is the model's own
    while anchor + 1 < length:
        golden = ids[anchor : anchor + 1]
        place = torch.tensor([anchor])
        drafted = draft.forward(context, segments, torch.tensor([0]), place, golden)
        tokens, confidences = draft.choose(drafted, golden)
        left = ids[anchor + 1 : anchor + 1 + draft.size]
        right = (tokens[0, : left.shape[0]] == left).tolist()
        accepted = right.index(False) if False in right else len(right)
        reached = right[: accepted + 1]
        rounds.append(
            {"accepted": accepted, "right": reached, "confidence": confidences[0].tolist()}
        )
        anchor += accepted + 1
    return rounds


def summary(rounds: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """The numbers of the module's description."""
    pairs = [
        (confidence, right)
        for one in rounds
        for confidence, right in zip(one["confidence"], one["right"], strict=False)
    ]
    error = 0.0
    for number in range(BINS):
        inside = [(c, r) for c, r in pairs if min(int(c * BINS), BINS - 1) == number]
        gap = sum(c for c, _ in inside) - sum(r for _, r in inside)
        error += abs(gap) / len(pairs)
    by_slot = []
    for slot in range(size):
        reached = [one["right"][slot] for one in rounds if len(one["right"]) > slot]
        by_slot.append(round(sum(reached) / max(1, len(reached)), 4))
    accepted = sum(one["accepted"] for one in rounds) / len(rounds)
    return {
        "rounds": len(rounds),
        "accepted": round(accepted, 3),
        "tokens_per_round": round(accepted + 1, 3),
        "by_slot": by_slot,
        "calibration_error": round(error, 4),
    }


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompts", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reference = build_reference(0)
    load(reference, options.run)
    draft, network = Draft(reference), Network(reference.target, reference.config)
    tokenizer = Batches(0, 512).tokenizer
    inputs = [tokenizer.encode(text).ids for text in prompts(options.prompts)]
    with LLM(str(options.checkpoint), max_model_len=512) as llm:
        outputs = llm.generate(inputs, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    rounds: list[dict[str, Any]] = []
    with torch.no_grad():
        for prompt, output in zip(inputs, outputs, strict=True):
            ids = torch.tensor([*prompt, *output.token_ids])
            rounds += replay(draft, network, ids, len(prompt))
    print(json.dumps(summary(rounds, draft.size)))


if __name__ == "__main__":
    main()
