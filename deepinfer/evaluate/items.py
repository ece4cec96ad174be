"""Held-out items: questions with one right answer, and texts for the perplexity.

They are package data, made by `examples/nano/heldout.py` of the source tree. Their texts contain
spellings of special tokens, which is allowed because the data are trusted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deepinfer.data import heldout_file
from deepinfer.errors import UsageError
from deepinfer.text import Tokenizer
from deepinfer.text.template import BOS, EOS

CLASSES: Final = (16, 32, 64, 128, 256, 512)
"""Accuracy is reported by classes of distance; these are their largest distances."""
_CONTROL: Final = re.compile("(<｜[^｜]*｜>|</think>)")


@dataclass(frozen=True)
class Question:
    """A question with its one right answer.

    prompt: the input of the model, from the beginning-of-sentence token on. answer: the text that
    must follow. ends: the end-of-sentence token must follow the answer. distance: how many tokens
    lie between a value in the prompt and the same value in the answer, the largest of several; 0
    where nothing of the prompt is recalled.
    """

    task: str
    distance: int
    prompt: str
    answer: str
    ends: bool

    @property
    def group(self) -> tuple[str, int]:
        """Task and class of distance, by which accuracy is reported."""
        return self.task, distance_class(self.distance)


@dataclass(frozen=True)
class Text:
    """A document for the perplexity. answers: the half-open range of characters of each."""

    text: str
    answers: tuple[tuple[int, int], ...]


def distance_class(distance: int) -> int:
    """The class of a distance, named by its largest distance; 0 for distance 0."""
    if not distance:
        return 0
    return next(bound for bound in CLASSES if distance <= bound)


def heldout(
    limit: int | None = None, file: Path | None = None
) -> tuple[list[Question], list[Text]]:
    """Read the items of the package, or of another file.

    limit: the most questions of each task and class of distance, and the most texts. Errors:
    UsageError for a limit below 1, and for a file of another form.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; allowed: 1 or more items of each kind")
    file = heldout_file() if file is None else file
    questions: list[Question] = []
    texts: list[Text] = []
    taken: Counter[tuple[str, int]] = Counter()
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read ({error}); install the package again") from error
    for number, line in enumerate(lines, 1):
        try:
            item = _item(json.loads(line))
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise UsageError(
                f"{file}, line {number}: is no held-out item ({error!r}); install the package again"
            ) from error
        group = ("text", 0) if isinstance(item, Text) else item.group
        taken[group] += 1
        if limit is not None and taken[group] > limit:
            continue
        if isinstance(item, Text):
            texts.append(item)
        else:
            questions.append(item)
    return questions, texts


def _item(values: dict[str, Any]) -> Question | Text:
    if values["task"] == "text":
        return Text(values["text"], tuple((first, last) for first, last in values["answers"]))
    question = Question(**values)
    distance_class(question.distance)
    return question


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a trusted text in which special tokens are spelt out.

    Beginning and end of a sentence become the ids of the checkpoint, however it spells them.
    Errors: TokenizerError for a special token that the checkpoint does not have.
    """
    ids: list[int] = []
    for piece in _CONTROL.split(text):
        if piece == BOS:
            ids.append(tokenizer.bos_id)
        elif piece == EOS:
            ids.append(tokenizer.eos_id)
        elif _CONTROL.fullmatch(piece):
            ids.append(tokenizer.token_id(piece))
        elif piece:
            ids += tokenizer.encode(piece)
    return ids
