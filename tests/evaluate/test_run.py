"""An evaluation of outputs that the test writes, and of the bundled checkpoint."""

from __future__ import annotations

import json
import math
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from deepinfer.engine import Engine, ModelRunner, SamplingParams
from deepinfer.engine.llm import LLM
from deepinfer.engine.outputs import CompletionOutput, RequestOutput
from deepinfer.engine.request import TokenLogprobs
from deepinfer.evaluate import Question, Score, Text, evaluate, render
from deepinfer.text import Tokenizer

BOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜></think>"
QUESTIONS = [
    Question("recall", 16, f"{BOS}lamp red. lamp", " red", False),
    Question("recall", 17, f"{BOS}lamp red, cup blue. lamp", " red", False),
    Question("recall", 40, f"{BOS}rope blue. rope", " blue", False),
    Question("json", 9, f"{BOS}{USER}Write.{ASSISTANT}", '{"a": 1}', True),
    Question("json", 9, f"{BOS}{USER}Write.{ASSISTANT}", '{"a": 1}', True),
    Question("arithmetic", 0, f"{BOS}{USER}1 + 1{ASSISTANT}", "1 + 1 = 2.", True),
]
TEXTS = [Text(f"{BOS}lamp red", ((len(BOS) + 4, len(BOS) + 8),))]


class Scripted:
    """An LLM that gives the outputs that it is told."""

    def __init__(self, tokenizer: Tokenizer, outputs: list[Any], window: int = 16) -> None:
        text = SimpleNamespace(sliding_window=window)
        config = SimpleNamespace(text=text)
        self.engine = SimpleNamespace(runner=SimpleNamespace(config=config))
        self.asked: list[tuple[list[int], SamplingParams]] = []
        self._tokenizer, self._outputs = tokenizer, outputs

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def generate(self, prompts: Any, params: Any, use_tqdm: bool) -> list[RequestOutput]:
        self.asked = list(zip(prompts, params, strict=True))
        return self._outputs


def output(text: str, reason: str = "stop", error: str = "") -> RequestOutput:
    return RequestOutput("r", None, [], [CompletionOutput(0, text, [], reason)], None, error)


def read(count: int) -> RequestOutput:
    """A text of which every token after the first has the probability 1/2, the last 1/8."""
    halves = [TokenLogprobs(math.log(0.5), 0.0)] * (count - 2)
    logprobs = [None, *halves, TokenLogprobs(math.log(0.125), 0.0)]
    return RequestOutput("r", None, [], [CompletionOutput(0, "", [], "length")], logprobs)


@pytest.fixture
def tokenizer(bundled_runner: ModelRunner) -> Tokenizer:
    return bundled_runner.tokenizer


@pytest.fixture
def scripted(tokenizer: Tokenizer) -> Any:
    count = len(tokenizer.encode_with_control(TEXTS[0].text))
    return Scripted(
        tokenizer,
        [
            output(" red", "length"),
            output(" red", "length"),
            output(" red", "length"),
            output('{"a": 1}'),
            output('{"a": 2}', "length"),
            output("1 + 1 = 2.", "error", "the step failed"),
            read(count),
        ],
    )


def test_scores_by_task_distance_and_window(scripted: Any) -> None:
    evaluation = evaluate(scripted, QUESTIONS, TEXTS)
    assert evaluation.scores == [
        Score("recall", "all", 2, 3),
        Score("recall", "1-16", 1, 1),
        Score("recall", "17-32", 1, 1),
        Score("recall", "33-64", 0, 1),
        Score("recall", "within window", 1, 1),
        Score("recall", "beyond window", 1, 2),
        Score("json", "all", 1, 2),
        Score("json", "1-16", 1, 2),
        Score("json", "within window", 1, 2),
        Score("arithmetic", "all", 0, 1),
    ]
    assert (evaluation.json_validity, evaluation.errors) == (1.0, ["the step failed"])
    assert evaluation.score("recall", "beyond window").accuracy == 0.5
    with pytest.raises(KeyError, match="no recall at distance 65-128"):
        evaluation.score("recall", "65-128")


def test_perplexities(tokenizer: Tokenizer) -> None:
    evaluation = evaluate(Scripted(tokenizer, []), [], [])  # type: ignore[arg-type]
    assert (evaluation.perplexity, evaluation.answer_perplexity) == (None, None)
    assert evaluation.json_validity is None
    assert evaluation.scores == []
    count = len(tokenizer.encode_with_control(TEXTS[0].text))
    evaluation = evaluate(Scripted(tokenizer, [read(count)]), [], TEXTS)  # type: ignore[arg-type]
    assert len(evaluation.text_logprobs) == count - 1
    assert evaluation.perplexity == pytest.approx(2 * 4 ** (1 / (count - 1)))
    answer = len(tokenizer.encode(" red"))
    assert evaluation.answer_perplexity == pytest.approx(2 * 4 ** (1 / answer))


def test_a_text_that_fails_is_an_error(tokenizer: Tokenizer) -> None:
    evaluation = evaluate(
        Scripted(tokenizer, [output("", "error", "no room")]),  # type: ignore[arg-type]
        [],
        TEXTS,
    )
    assert evaluation.errors == ["no room"]
    assert evaluation.perplexity is None


def test_requests_are_greedy_and_just_long_enough(scripted: Any, tokenizer: Tokenizer) -> None:
    evaluate(scripted, QUESTIONS, TEXTS)
    assert [params.temperature for _, params in scripted.asked] == [0] * 7
    lengths = [params.max_tokens for _, params in scripted.asked]
    sums = len(tokenizer.encode("1 + 1 = 2.")) + 1
    record = len(tokenizer.encode('{"a": 1}')) + 1 + 64
    red, blue = (len(tokenizer.encode(word)) for word in (" red", " blue"))
    assert lengths == [red, red, blue, record, record, sums, 1]
    assert [params.prompt_logprobs for _, params in scripted.asked] == [False] * 6 + [True]
    assert scripted.asked[0][0] == tokenizer.encode_with_control(QUESTIONS[0].prompt)


def test_the_document_is_json_and_says_what_it_depends_on(scripted: Any) -> None:
    document = evaluate(scripted, QUESTIONS, TEXTS).to_dict({"limit": 3})
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["settings"] == {"limit": 3}
    assert document["window"] == 16
    assert document["accuracy"][0] == {
        "task": "recall",
        "distance": "all",
        "correct": 2,
        "count": 3,
        "accuracy": 0.6667,
    }
    assert (document["json_validity"], document["errors"]) == (1.0, ["the step failed"])


def test_an_infinite_perplexity_is_a_word_in_json(scripted: Any) -> None:
    evaluation = evaluate(scripted, QUESTIONS, TEXTS)
    evaluation.text_logprobs.append(-math.inf)
    assert evaluation.to_dict({})["perplexity"] == "infinite"


def test_the_table_has_every_score(scripted: Any) -> None:
    stream = StringIO()
    evaluation = evaluate(scripted, QUESTIONS, TEXTS)
    Console(file=stream, width=100).print(render(evaluation, "the [/title] :smile:"))
    shown = " ".join(stream.getvalue().split())
    assert "the [/title] :smile:" in shown
    assert "recall beyond window 1 2 50.0%" in shown
    assert "window: 16 tokens" in shown
    assert "perplexity of answers: " in shown
    assert "valid JSON: 100.0%" in shown
    assert "failed requests: 1, first: the step failed" in shown


@pytest.mark.slow
def test_the_random_checkpoint_knows_nothing(bundled_runner: ModelRunner) -> None:
    with LLM.of(Engine(bundled_runner, settings=bundled_runner.settings)) as llm:
        evaluation = evaluate(llm, QUESTIONS[:3], TEXTS)
    assert evaluation.score("recall").correct == 0
    assert evaluation.errors == []
    assert evaluation.perplexity is not None
    assert evaluation.perplexity > 1000
