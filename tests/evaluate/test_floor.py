"""The trained checkpoint keeps what it learned, end to end, in INFER with the FP4 cache."""

from __future__ import annotations

from deepinfer.backend.registry import REFERENCE
from deepinfer.data import nano_checkpoint
from deepinfer.engine.llm import LLM
from deepinfer.evaluate import evaluate, heldout

FLOOR = 0.9
"""Share of right answers below which something is broken; every one was right when recorded."""
PERPLEXITY = 4.0
"""Above that it is broken too; 2.66 was recorded over all texts."""


def test_recall_questions_and_records_stay_above_the_floor() -> None:
    questions, texts = heldout(2)
    asked = [one for one in questions if one.task != "arithmetic"]
    options = {"max_model_len": 512, "max_num_seqs": 16}
    with LLM(nano_checkpoint(), accelerator=REFERENCE, **options) as llm:
        assert llm.engine.numerics.value == "infer"
        evaluation = evaluate(llm, asked, texts)
    assert evaluation.errors == []
    assert len(evaluation.answers) == 28
    right = sum(answer.correct for answer in evaluation.answers) / len(evaluation.answers)
    assert right >= FLOOR, [
        (a.question.group, a.question.answer, a.text) for a in evaluation.answers
    ]
    assert evaluation.perplexity is not None and evaluation.perplexity < PERPLEXITY
    assert evaluation.json_validity == 1.0
