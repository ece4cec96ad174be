"""The trained checkpoint keeps what it learned, end to end, in INFER with the FP4 cache."""

from __future__ import annotations

import pytest

from deepinfer.backend.registry import REFERENCE
from deepinfer.data import nano_checkpoint
from deepinfer.engine.llm import LLM
from deepinfer.evaluate import Evaluation, evaluate, heldout
from deepinfer.evaluate.report import ALL, BEYOND, WITHIN

FLOOR = 0.8
"""Share of right answers of a task, within or beyond the window, below which something is broken;
every one was right when recorded."""
PERPLEXITY = 2.3
"""Of the first two texts: 2.08 was recorded."""


@pytest.mark.slow
def test_every_task_stays_above_the_floor() -> None:
    questions, texts = heldout(2)
    asked = [one for one in questions if one.task != "arithmetic"]
    options = {"max_model_len": 512, "max_num_seqs": 16}
    with LLM(nano_checkpoint(), accelerator=REFERENCE, **options) as llm:
        assert llm.engine.runner.numerics.value == "infer"
        evaluation = evaluate(llm, asked, texts)
    assert evaluation.errors == []
    groups = [(task, part) for task in ("recall", "story") for part in (WITHIN, BEYOND)]
    for task, part in [*groups, ("json", ALL)]:
        score = evaluation.score(task, part)
        assert score.count >= 4, score
        assert score.accuracy >= FLOOR, (score, wrong(evaluation))
    assert evaluation.perplexity is not None
    assert evaluation.perplexity < PERPLEXITY
    assert evaluation.json_validity == 1.0


def wrong(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Answers that were to be given, and those that were."""
    return [(one.question.answer, one.text) for one in evaluation.answers if not one.correct]
