"""An evaluation as a table for people."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deepinfer.evaluate.report import Evaluation


def render(evaluation: Evaluation, title: str) -> RenderableType:
    """A row for each task and distance, then perplexities, share of valid JSON, and failures."""
    rows = Table(title=Text(title), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("task", "distance"):
        rows.add_column(name, no_wrap=True)
    for name in ("correct", "of", "accuracy"):
        rows.add_column(name, justify="right", no_wrap=True)
    for score in evaluation.scores:
        counts = str(score.correct), str(score.count), f"{score.accuracy:.1%}"
        rows.add_row(score.task, score.distance, *counts)
    lines = [f"window: {evaluation.window} tokens"]
    for name, value, tokens in (
        ("perplexity", evaluation.perplexity, len(evaluation.text_logprobs)),
        ("perplexity of answers", evaluation.answer_perplexity, len(evaluation.answer_logprobs)),
    ):
        if value is not None:
            lines.append(f"{name}: {value:.4g} ({tokens:,} tokens)")
    if evaluation.json_validity is not None:
        lines.append(f"valid JSON: {evaluation.json_validity:.1%}")
    if evaluation.errors:
        lines.append(f"failed requests: {len(evaluation.errors)}, first: {evaluation.errors[0]}")
    return Group(rows, *(Text(line) for line in lines))
