#!/usr/bin/env python3
"""Rows of docs/evaluation.md: `python scripts/evaluation_table.py FILE...`.

Each file is a document of `deepinfer eval nano --json`; its row goes by numerics and cache_dtype.
The last column counts answers that are not, letter by letter, those of the first file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = (
    ("recall", "within window"),
    ("recall", "beyond window"),
    ("story", "within window"),
    ("story", "beyond window"),
    ("arithmetic", "all"),
    ("json", "all"),
)


def rows(documents: list[dict[str, Any]]) -> list[str]:
    """The lines of the table."""
    names = ["numerics", "cache", *(f"{task}, {distance}" for task, distance in COLUMNS)]
    names += ["valid JSON", "perplexity", "of answers", "other answers"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for document in documents:
        scores = {(one["task"], one["distance"]): one for one in document["accuracy"]}
        cells = [document["settings"]["numerics"], document["settings"]["options"]["cache_dtype"]]
        for column in COLUMNS:
            score = scores.get(column)
            cells.append("" if score is None else f"{score['correct']} of {score['count']}")
        value = document["json_validity"]
        cells.append("" if value is None else f"{value:.0%}")
        for name in ("perplexity", "answer_perplexity"):
            value = document[name]
            cells.append(
                value if isinstance(value, str) else "" if value is None else f"{value:.4f}"
            )
        pairs = zip(document["answers"], documents[0]["answers"], strict=True)
        cells.append(str(sum(one["text"] != other["text"] for one, other in pairs)))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    given = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    print("\n".join(rows(given)))
