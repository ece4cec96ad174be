#!/usr/bin/env python3
"""Rows of docs/evaluation.md: `python scripts/evaluation_table.py FILE...`.

Each file is a document of `deepinfer eval nano --json`; its row goes by numerics and cache_dtype.
The last columns compare with the first file: the mean difference of the log-probability of a token
of the texts, with its standard error, and answers that are not the same letter by letter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean, stdev
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
    names += ["valid JSON", "perplexity", "of answers", "log-probability", "other answers"]
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
        cells.append(difference(document["text_logprobs"], documents[0]["text_logprobs"]))
        pairs = zip(document["answers"], documents[0]["answers"], strict=True)
        cells.append(str(sum(one["text"] != other["text"] for one, other in pairs)))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def difference(values: list[float | str], first: list[float | str]) -> str:
    """Mean of values minus first and its standard error; empty where it is the same or infinite."""
    if values == first or any(isinstance(value, str) for value in (*values, *first)):
        return ""
    differences = [float(a) - float(b) for a, b in zip(values, first, strict=True)]
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return f"{fmean(differences):+.4f} ± {error:.4f}"


if __name__ == "__main__":
    given = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    print("\n".join(rows(given)))
