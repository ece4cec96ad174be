"""`Evaluation`: the answers of one run, and the numbers made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from deepinfer.evaluate.items import CLASSES, Question
from deepinfer.evaluate.scorers import perplexity

FORMAT_VERSION = 1
ALL, WITHIN, BEYOND = "all", "within window", "beyond window"


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    valid: whether it is a JSON object; None where no JSON was asked for, or the request failed.
    """

    question: Question
    text: str
    correct: bool
    valid: bool | None = None
    error: str = ""


@dataclass(frozen=True)
class Score:
    """Right answers among all of one kind.

    distance: a class such as "17-32", or one of the names above.
    """

    task: str
    distance: str
    correct: int
    count: int

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.count


@dataclass
class Evaluation:
    """The answers of one run.

    window: tokens of the model's sliding window. text_logprobs: natural logarithms of the
    probabilities of all tokens of the texts except the first of each. answer_logprobs: the same for
    the tokens of answers in the texts. errors: of failed requests.
    """

    window: int
    answers: list[Answer] = field(default_factory=list)
    text_logprobs: list[float] = field(default_factory=list)
    answer_logprobs: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def scores(self) -> list[Score]:
        """By task: of all answers, by class of distance, and within and beyond the window."""
        scores = []
        for task in dict.fromkeys(answer.question.task for answer in self.answers):
            mine = [answer for answer in self.answers if answer.question.task == task]
            scores.append(_score(task, ALL, mine))
            recalled = [answer for answer in mine if answer.question.distance]
            for below, bound in zip((0, *CLASSES), CLASSES, strict=False):
                label = f"{below + 1}-{bound}"
                scores += _scored(task, label, recalled, _between(below, bound))
            scores += _scored(task, WITHIN, recalled, lambda d: d <= self.window)
            scores += _scored(task, BEYOND, recalled, lambda d: d > self.window)
        return scores

    def score(self, task: str, distance: str = ALL) -> Score:
        """One of `scores`; KeyError where there is no such score."""
        for score in self.scores:
            if (score.task, score.distance) == (task, distance):
                return score
        raise KeyError(f"no {task} at distance {distance}")

    @property
    def perplexity(self) -> float | None:
        """Perplexity of the texts; None without a text."""
        return perplexity(self.text_logprobs)

    @property
    def answer_perplexity(self) -> float | None:
        """Perplexity of the answers in the texts; None without an answer."""
        return perplexity(self.answer_logprobs)

    @property
    def json_validity(self) -> float | None:
        """Share of JSON answers that are a JSON object, right or not; None without one."""
        valid = [answer.valid for answer in self.answers if answer.valid is not None]
        return sum(valid) / len(valid) if valid else None

    def to_dict(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The document of `deepinfer eval nano --json`; settings: what it depends on."""
        return {
            "format_version": FORMAT_VERSION,
            "evaluation": "nano",
            "settings": settings,
            "window": self.window,
            "accuracy": [
                {
                    "task": score.task,
                    "distance": score.distance,
                    "correct": score.correct,
                    "count": score.count,
                    "accuracy": round(score.accuracy, 4),
                }
                for score in self.scores
            ],
            "perplexity": _short(self.perplexity),
            "perplexity_tokens": len(self.text_logprobs),
            "text_logprobs": [_short(value) for value in self.text_logprobs],
            "answer_perplexity": _short(self.answer_perplexity),
            "answer_perplexity_tokens": len(self.answer_logprobs),
            "json_validity": _short(self.json_validity),
            "answers": [
                {
                    "task": answer.question.task,
                    "distance": answer.question.distance,
                    "expected": answer.question.answer,
                    "text": answer.text,
                    "correct": answer.correct,
                }
                for answer in self.answers
            ],
            "errors": self.errors,
        }


def _scored(
    task: str, label: str, answers: Iterable[Answer], chosen: Callable[[int], bool]
) -> list[Score]:
    """The score of the answers whose distance is chosen, if there are any."""
    mine = [answer for answer in answers if chosen(answer.question.distance)]
    return [_score(task, label, mine)] if mine else []


def _between(below: int, bound: int) -> Callable[[int], bool]:
    return lambda distance: below < distance <= bound


def _score(task: str, label: str, answers: list[Answer]) -> Score:
    return Score(task, label, sum(answer.correct for answer in answers), len(answers))


def _short(value: float | None) -> float | str | None:
    """Six digits; JSON has no infinity, so that is a text."""
    if value is None or abs(value) != float("inf"):
        return None if value is None else float(f"{value:.6g}")
    return "infinite" if value > 0 else "-infinite"
