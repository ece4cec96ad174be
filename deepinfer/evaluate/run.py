"""`evaluate`: run every held-out item through an engine with greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.engine.llm import LLM
from deepinfer.engine.outputs import RequestOutput
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.evaluate.items import Question, Text, encode
from deepinfer.evaluate.report import Answer, Evaluation
from deepinfer.evaluate.scorers import answer_tokens, is_exact, is_json_object

JSON = "json"
JSON_ROOM = 64
"""Further tokens for a JSON answer, so that a longer one than expected is not cut off."""


def evaluate(
    llm: LLM, questions: Sequence[Question], texts: Sequence[Text], *, progress: bool = False
) -> Evaluation:
    """Answer the questions and score the texts.

    progress: a bar on stderr where that is a terminal. A request that fails counts as a wrong
    answer, and its error is kept. Errors: TokenizerError where the checkpoint lacks a token of the
    chat format.
    """
    tokenizer = llm.get_tokenizer()
    prompts = [encode(tokenizer, question.prompt) for question in questions]
    params = [
        SamplingParams(
            temperature=0, max_tokens=_room(question, encode(tokenizer, question.answer))
        )
        for question in questions
    ]
    documents = [encode(tokenizer, text.text) for text in texts]
    params += [SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=True)] * len(texts)
    outputs = llm.generate([*prompts, *documents], params, use_tqdm=progress)
    evaluation = Evaluation(window=llm.engine.runner.config.text.sliding_window)
    for question, output in zip(questions, outputs, strict=False):
        evaluation.answers.append(_answer(question, output))
    for text, ids, output in zip(texts, documents, outputs[len(questions) :], strict=True):
        if output.error or output.prompt_logprobs is None:
            evaluation.errors.append(output.error or "a text has no log-probabilities")
            continue
        raw = [0.0 if one is None else one.raw for one in output.prompt_logprobs]
        evaluation.text_logprobs += raw[1:]  # nothing predicts the first token
        evaluation.answer_logprobs += [raw[i] for i in answer_tokens(tokenizer, ids, text)]
    evaluation.errors += [answer.error for answer in evaluation.answers if answer.error]
    return evaluation


def _room(question: Question, answer: Sequence[int]) -> int:
    """Output tokens that a right answer takes, including its end."""
    return len(answer) + question.ends + (JSON_ROOM if question.task == JSON else 0)


def _answer(question: Question, output: RequestOutput) -> Answer:
    ended = output.finish_reason == "stop"
    return Answer(
        question,
        text=output.text,
        correct=not output.error and is_exact(question, output.text, ended),
        valid=is_json_object(output.text) if question.task == JSON and not output.error else None,
        error=output.error,
    )
