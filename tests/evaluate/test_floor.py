"""The trained checkpoint keeps what it learned, end to end, in INFER with the FP4 cache."""

from __future__ import annotations

import pytest

from deepinfer.backend.registry import REFERENCE
from deepinfer.data import nano_checkpoint
from deepinfer.engine.llm import LLM
from deepinfer.evaluate import evaluate, heldout

FLOOR = 0.7
"""Share of right answers below which something is broken; the recorded ones are higher."""


@pytest.mark.skipif(nano_checkpoint() is None, reason="no trained checkpoint in this package")
def test_recall_and_questions_stay_above_the_floor() -> None:
    questions, texts = heldout(2)
    asked = [one for one in questions if one.task in ("recall", "story") and one.distance <= 128]
    options = {"max_model_len": 256, "max_num_seqs": 16}
    with LLM(nano_checkpoint(), accelerator=REFERENCE, **options) as llm:
        assert llm.engine.numerics.value == "infer"
        evaluation = evaluate(llm, asked, texts[:1])
    assert evaluation.errors == []
    assert len(evaluation.answers) == 14
    right = sum(answer.correct for answer in evaluation.answers) / len(evaluation.answers)
    assert right >= FLOOR, [
        (a.question.group, a.question.answer, a.text) for a in evaluation.answers
    ]
    assert evaluation.perplexity is not None and evaluation.perplexity < 10
