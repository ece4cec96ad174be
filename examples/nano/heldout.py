"""Make the held-out items of `deepinfer eval nano`: `python -m examples.nano.heldout [--check]`.

One JSON object a line, in `deepinfer/data/nano_eval.jsonl`; run it from the root of the source
tree. Recall and story have as many items in every class of distances, no sum is asked twice, in
neither order; texts are whole documents.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepinfer.evaluate import CLASSES, distance_class
from examples.nano.data import ASSISTANT, EOS, Document, documents

FILE = Path(__file__).resolve().parents[2] / "deepinfer" / "data" / "nano_eval.jsonl"
SEED = 20260
PER_CLASS = 24
OTHERS = {"arithmetic": 40, "json": 40}
TEXTS = 32


def items() -> Iterator[dict[str, Any]]:
    """All items, in the order of their documents; texts come last, of other documents."""
    wanted: Counter[tuple[str, int]] = Counter({(task, 0): n for task, n in OTHERS.items()})
    wanted += Counter({("recall", bound): PER_CLASS for bound in CLASSES})
    wanted += Counter({("story", bound): PER_CLASS for bound in CLASSES if bound > CLASSES[0]})
    sums: set[frozenset[str]] = set()
    for number, document in enumerate(documents(SEED, "heldout")):
        item = _question(document, number % len(document.answer_spans))
        if item["task"] == "arithmetic":
            terms = frozenset(item["answer"].split(" = ")[0].split(" + "))
            if terms in sums:
                continue
            sums.add(terms)
        group = item["task"], distance_class(item["distance"])
        group = (item["task"], 0) if item["task"] in OTHERS else group
        if wanted[group]:
            wanted[group] -= 1
            yield item
        if not wanted.total():
            break
    for _, document in zip(range(TEXTS), documents(SEED + 1, "heldout"), strict=False):
        yield {"task": "text", "text": document.text, "answers": document.answer_spans}


def _question(document: Document, number: int) -> dict[str, Any]:
    """One question of a document: a chat is cut where the answer begins and must end. The distance
    of a record is the largest of its fields."""
    first, last = document.answer_spans[number]
    distance = document.distance if document.task == "json" else document.distances[number]
    text = document.text
    ends = document.task != "recall"
    if ends:
        first = text.rindex(ASSISTANT, 0, first) + len(ASSISTANT)
        last = text.index(EOS, first)
    return {
        "task": document.task,
        "distance": distance,
        "prompt": text[:first],
        "answer": text[first:last],
        "ends": ends,
    }


def main(arguments: list[str] | None = None) -> int:
    """Write or check the file; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file there")
    options = parser.parse_args(arguments)
    made = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items()).encode()
    if options.check:
        same = FILE.read_bytes() == made
        print("every byte is as made" if same else f"{FILE}: differs")
        return 0 if same else 1
    FILE.write_bytes(made)
    print(f"{FILE}: {made.count(10)} items, {len(made):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
