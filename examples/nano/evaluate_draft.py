"""Measure the draft: `python -m examples.nano.evaluate_draft RUN CHECKPOINT [--prompts N]`.

CHECKPOINT is what `examples.nano.convert` wrote of RUN. The engine (INFER, FP4 cache) answers
held-out prompts greedily; then the draft is replayed along those outputs in float32, as greedy
speculative decoding would use it: a round drafts five tokens, keeps those that are what the model
wrote, and the model gives one more. Prints one JSON object, of all rounds and, in `parts`, of those
of each task, within and beyond the window (by the first value that is asked for):

* accepted: drafts kept; acceptance_length: these and the model's own token, as engines report it;
* tokens_per_round: tokens that a round adds to an output, whose end may leave no room for either;
* by_slot: share of slots that are right, of those that were reached;
* accepted_without_end: drafts that a round would keep if outputs did not end, from by_slot;
* calibration_error: expected calibration error of the confidences of the slots that were reached,
  in ten bins of equal width.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deepinfer import LLM, SamplingParams
from deepinfer.backend.registry import REFERENCE
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


def prompts(count: int, window: int) -> list[tuple[str, str]]:
    """Part and beginning of held-out documents, up to where the model is to write."""
    found: list[tuple[str, str]] = []
    for document in data.documents(SEED, "heldout"):
        if len(found) == count:
            break
        if data.token_count(document.text) > LONGEST_PROMPT:
            continue
        first = document.answer_spans[0][0]
        end = document.text.rfind(data.ASSISTANT, 0, first)
        end = end + len(data.ASSISTANT) if end >= 0 else first
        beyond = document.distances[0] > window
        part = document.task + (", beyond the window" if beyond else "")
        found.append((part, document.text[:end]))
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
        added = min(accepted + 1, length - anchor - 1)
        rounds.append(
            {
                "accepted": accepted,
                "added": added,
                "right": reached,
                "confidence": confidences[0].tolist(),
            }
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
        by_slot.append(sum(reached) / max(1, len(reached)))
    accepted = sum(one["accepted"] for one in rounds) / len(rounds)
    return {
        "rounds": len(rounds),
        "accepted": round(accepted, 3),
        "acceptance_length": round(1 + accepted, 3),
        "tokens_per_round": round(sum(one["added"] for one in rounds) / len(rounds), 3),
        "accepted_without_end": round(sum(itertools.accumulate(by_slot, operator.mul)), 3),
        "by_slot": [round(share, 4) for share in by_slot],
        "calibration_error": round(error, 4),
    }


def main() -> None:
    """Measure from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--prompts", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # every output has a length of its own
    reference = build_reference(0)
    load(reference, options.run)
    draft, network = Draft(reference), Network(reference.target, reference.config)
    tokenizer = Batches(0, 512).tokenizer
    asked = prompts(options.prompts, network.window)
    inputs = [tokenizer.encode(text).ids for _, text in asked]
    with LLM(str(options.checkpoint), accelerator=REFERENCE, max_model_len=512) as llm:
        outputs = llm.generate(inputs, SamplingParams(temperature=0, max_tokens=MAX_TOKENS))
    rounds: dict[str, list[dict[str, Any]]] = {}
    with torch.no_grad():
        for (part, _), prompt, output in zip(asked, inputs, outputs, strict=True):
            ids = torch.tensor([*prompt, *output.token_ids])
            rounds.setdefault(part, []).extend(replay(draft, network, ids, len(prompt)))
    found = summary([one for group in rounds.values() for one in group], draft.size)
    found["parts"] = {part: summary(rounds[part], draft.size) for part in sorted(rounds)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
